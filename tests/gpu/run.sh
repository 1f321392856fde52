#!/usr/bin/env bash
# Every check that needs a GPU, and a table of speeds; takes less than 10 minutes and uses no network.
#
#     tests/gpu/run.sh [PYTHON]
#
# PYTHON (default: python3) needs torch with CUDA and pytest. Nothing is built or installed: the package is this
# checkout's, and the library the one that VLLM_WEIGHT_CHECKER_LIBRARY names, or else target/release/libweight_checker.so.
# Where compute-sanitizer is on the PATH, a short part runs once more under its memcheck. Ends with 0 when all checks
# pass; the table says for each speed whether its target is met, and a missed one does not change that.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}

heading() { printf '\n== %s\n' "$*"; }

export PYTHONPATH="$PWD/python_shim:$PWD/tests/python:$PWD/tests/gpu${PYTHONPATH:+:$PYTHONPATH}"
export VLLM_WEIGHT_CHECKER_LIBRARY=${VLLM_WEIGHT_CHECKER_LIBRARY:-$PWD/target/release/libweight_checker.so}
if [ ! -f "$VLLM_WEIGHT_CHECKER_LIBRARY" ]; then
    echo "there is no $VLLM_WEIGHT_CHECKER_LIBRARY: build it with cargo build --release" >&2
    exit 2
fi

heading "Machine"
"$python" - <<'EOF'
import sys
import torch
if not torch.cuda.is_available() or torch.version.hip:
    sys.exit(f"torch {torch.__version__} sees no CUDA device")
for index in range(torch.cuda.device_count()):
    device = torch.cuda.get_device_properties(index)
    print(f"{index}: {device.name}, {device.multi_processor_count} multiprocessors, {device.total_memory >> 30} GiB")
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
EOF
if command -v nvidia-smi >/dev/null; then nvidia-smi --query-gpu=driver_version,clocks.max.sm --format=csv; fi

# Whatever fails, the rest still says what it can.
status=0
pytest=("$python" -m pytest -q -p no:cacheprovider -o addopts= --rootdir tests/gpu tests/gpu/test_gpu.py)
heading "Checks"
timeout 270 "${pytest[@]}" --durations 5 || status=1

if command -v compute-sanitizer >/dev/null; then
    heading "compute-sanitizer"
    # Every tensor has memory of its own, so that a byte beside it is seen. Errors of the driver's calls are not looked at:
    # asking it about bad addresses is how those are found.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 100 compute-sanitizer --tool memcheck --report-api-errors no \
        --error-exitcode 9 "${pytest[@]}" -k "small and (lengths or bfloat16 or complex128 or float4)" || status=1
else
    heading "compute-sanitizer is not on the PATH"
fi

heading "Speeds"
timeout 200 "$python" tests/gpu/table.py || status=1
exit $status
