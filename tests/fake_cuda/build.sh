#!/usr/bin/env bash
# Builds the fake driver: build.sh OUT_DIR makes OUT_DIR/libcuda.so.1 when a source is newer. Needs only a C++ compiler.
# A later dlopen("libcuda.so") in a process that loaded it by path finds it, by its soname; it does not find
# OUT_DIR/libfake_cuda.so, which is otherwise the same.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
library=$out/libcuda.so.1

newer() { find . ../../src/cuda \( -name '*.[ch]*' -o -name build.sh \) -newer "$library"; }
if [ -e "$library" ] && [ -z "$(newer)" ]; then exit; fi

# Of its own name until it is whole: another process may build at the same time.
work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
common=(-std=c++17 -O2 -fPIC -fvisibility=hidden -Wall -Wextra)
# longjmp between stacks is what the fibers are; the fortified one forbids it.
"${CXX:-c++}" "${common[@]}" -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -c threads.cpp -o "$work/threads.o" &
for source in state contexts streams memory copies modules control framework; do
    "${CXX:-c++}" "${common[@]}" -c $source.cpp -o "$work/$source.o" &
done
# Misaligned accesses trap, as they do on a GPU. Rounds of a hash index arrays by constants only when they are unrolled.
for kernels in kernels_*.cpp; do
    "${CXX:-c++}" "${common[@]}" -fno-strict-aliasing -Wno-unknown-pragmas -Wno-unused-parameter \
        -fsanitize=alignment -fsanitize-undefined-trap-on-error \
        -funroll-loops --param max-completely-peel-times=64 --param max-completely-peeled-insns=100000 \
        -c "$kernels" -o "$work/${kernels%.cpp}.o" &
done
for job in $(jobs -p); do wait "$job"; done
link() { "${CXX:-c++}" -shared -Wl,-soname,"$1" -Wl,-Bsymbolic -Wl,--no-undefined "$work"/*.o -o "$work/$2" -pthread; }
link libfake_cuda.so libfake_cuda.so
link libcuda.so libcuda.so.1
ln -s libcuda.so.1 "$work/libcuda.so"
for made in libfake_cuda.so libcuda.so libcuda.so.1; do mv -T "$work/$made" "$out/$made"; done
