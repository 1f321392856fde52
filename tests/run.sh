#!/usr/bin/env bash
# Passes every test: formatting, lints, the Rust crate, C and C++ callers, the Python package, a real vLLM.
# Installs what it needs first (tests/setup.sh). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

heading() { printf '\n== %s\n' "$*"; }

heading "Environment"
bash tests/setup.sh

heading "Formatting and lints"
cargo fmt --check
cargo clippy --quiet --all-targets --all-features -- -D warnings
.venv/bin/ruff check --quiet python_shim tests
.venv/bin/ruff format --check --quiet python_shim tests
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps

# What the kernel says of this processor must be found by the library too.
WC_EXPECT=$(for pair in avx512f:avx512 sha_ni:shani avx2:avx2; do
    grep -qw "${pair%:*}" /proc/cpuinfo && printf '%s,' "${pair#*:}"
done || true)
export WC_EXPECT=${WC_EXPECT%,}

heading "Rust crate, C and C++ callers (hash backends expected: $WC_EXPECT)"
cargo test --quiet --features test-hooks

heading "Python package and vLLM"
.venv/bin/python -m pytest tests/python "$@"
