#!/usr/bin/env bash
# Makes the virtual environment .venv: vLLM for CPU, the test tools, and this package with its library.
# Does again only what has changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."

need() { # need COMMAND HOW-TO-GET-IT
    command -v "$1" > /dev/null || { printf 'tests/setup.sh: %s is missing: %s\n' "$1" "$2" >&2; exit 1; }
}

need cargo "install Rust (1.89 or later)"
need python3.11 "install Python 3.11"
packages=()
command -v cc > /dev/null && command -v c++ > /dev/null || packages+=(gcc g++ libc6-dev)
command -v curl > /dev/null || packages+=(curl)
if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        printf 'tests/setup.sh: install these first: %s\n' "${packages[*]}" >&2
        exit 1
    fi
    apt-get update -q
    apt-get install -q -y "${packages[@]}"
fi

hash_of() { find "$@" -type f -not -name '*.pyc' -not -path '*/build/*' -not -path '*.egg-info/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16; }

# A stamp is written when its step is complete, and names what the step was made from.
environment=".venv/environment-$(hash_of tests/requirements.txt tests/setup.sh)"
if [ ! -e "$environment" ]; then
    rm -rf .venv
    python3.11 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -r tests/requirements.txt
    touch "$environment"
fi

package=".venv/package-$(hash_of Cargo.toml Cargo.lock src python_shim)"
if [ ! -e "$package" ]; then
    rm -f .venv/package-*
    .venv/bin/uv pip install ./python_shim --quiet --python .venv/bin/python --no-deps --no-build-isolation --reinstall
    touch "$package"
fi
