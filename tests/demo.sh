#!/usr/bin/env bash
# A real vLLM API server at tensor parallel 2 on this machine's CPU: its weights are hashed on every rank, zeroed,
# reloaded and compared, and one flipped element on one rank is found. Ends with 0 when all was as expected.
set -euo pipefail
cd "$(dirname "$0")/.."

heading() { printf '\n== %s\n' "$*"; }
fail() { printf '\ntests/demo.sh: %s\n' "$*" >&2; exit 1; }

heading "Environment (the first time this takes some minutes)"
bash tests/setup.sh
export PATH="$PWD/.venv/bin:$PATH"

work=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ] && kill "$server" 2> /dev/null; then wait "$server" || true; fi
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

model=$(python tests/python/tiny_models.py llama)
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url="http://127.0.0.1:$port"

heading "vLLM API server, two tensor-parallel ranks, a tiny Llama with random weights"
export VLLM_SERVER_DEV_MODE=1 VLLM_PLUGINS=weight_checker VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS=1
export HF_HUB_OFFLINE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1
PYTHONPATH="$PWD/tests/python" python -m vllm.entrypoints.openai.api_server --model "$model" --tensor-parallel-size 2 \
    --host 127.0.0.1 --port "$port" --enforce-eager --max-model-len 128 --gpu-memory-utilization 0.3 \
    --worker-extension-cls flip_extension.FlipOneElement > "$work/server.log" 2>&1 &
server=$!
for attempt in $(seq 300); do
    curl --silent --fail --output /dev/null "$url/health" && break
    kill -0 "$server" 2> /dev/null || { tail -n 40 "$work/server.log"; server=; fail "the server has ended"; }
    [ "$attempt" -lt 300 ] || { tail -n 40 "$work/server.log"; fail "the server does not answer"; }
    sleep 1
done
echo "listening at $url"

post() { # post PATH [JSON]
    curl --silent --show-error --fail --output /dev/null -X POST "$url$1" -H 'Content-Type: application/json' -d "${2:-}"
}

check() { # check EXPECTED-STATUS ACTION [OPTION...]
    local expected=$1 status=0
    shift
    echo "\$ weight-checker $* --url $url"
    weight-checker "$@" --url "$url" || status=$?
    [ "$status" = "$expected" ] || fail "it ended with $status, not with $expected"
}

heading "Pause serving and take a baseline of every rank"
post /pause
check 0 checksum -o "$work/baseline.json"

heading "Zero every weight: compare must say so"
check 0 reset
check 1 compare --baseline "$work/baseline.json"

heading "Load the weights again: compare must match, and serving goes on"
post /collective_rpc '{"method": "reload_weights"}'
check 0 compare --baseline "$work/baseline.json"
post /resume

heading "Flip one bit of one element on one rank: compare must name exactly that parameter"
damaged=model.layers.1.mlp.down_proj.weight
post /collective_rpc "{\"method\": \"flip_one_element\", \"args\": [\"1\", \"$damaged\"]}"
check 1 compare --baseline "$work/baseline.json"
weight-checker compare --baseline "$work/baseline.json" --url "$url" --json > "$work/report.json" || true
named=$(python -c 'import json, sys; print(*json.load(open(sys.argv[1]))["mismatches"])' "$work/report.json")
[ "$named" = "dp0:pp0:pcp0:tp1:$damaged" ] || fail "it named '$named'"

heading "All as expected: the server is stopped"
