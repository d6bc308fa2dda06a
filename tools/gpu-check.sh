#!/bin/bash
# Check prefixd on this machine's GPU, and measure it: build, then copies, sharing with both exports,
# kill -9 and the table of bandwidths, on the real driver. Under four minutes.
#
#   tools/gpu-check.sh [--device INDEX] [--mib N] [--probe]
#                                     which GPU (0), how many MiB are copied to measure (256); only
#                                     say whether there is one
#   tools/gpu-check.sh --pack DIR     build, and put all that a run needs into DIR, for a machine that
#                                     cannot build: there, DIR/gpu-check.sh
#
# Exit status: 0 all is well, 1 something is not, 2 a wrong option, 77 there is no driver or no GPU.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh FILE
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if [ -x "$here/bin/gpu_check" ]; then # packed
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/lib"
    exec "$here/bin/gpu_check" "$@"
fi
case ${1:-} in
--help | -h)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit ;;
--pack)
    [ -n "${2:-}" ] || { echo "gpu-check: --pack: it takes a directory, which it makes" >&2; exit 2; } ;;
esac

cd "$here/.."
. tools/packages.sh

pack() {
    mkdir -p "$1/bin" "$1/lib"
    cp tools/gpu-check.sh "$1/"
    cp build/gpu/tools/gpu_check build/gpu/daemon/prefixd "$1/bin/"
    # What the two link to, but for the C library.
    ldd build/gpu/tools/gpu_check build/gpu/daemon/prefixd | awk '$2 == "=>" { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
        xargs -r cp -L -t "$1/lib"
    echo "$1 has all that a run needs, the C library apart: take it there, and run gpu-check.sh in it."
}

need_build_packages
nvcc=$(PATH=$PATH:/usr/local/cuda/bin:/opt/cuda/bin command -v nvcc || true)
[ -n "$nvcc" ] || echo "There is no nvcc here, so no kernels will be built; install CUDA's nvcc."
echo "Building (release, in build/gpu) ..."
setup_in build/gpu --buildtype=release -Dtests=false
ninja --quiet -C build/gpu tools/gpu_check daemon/prefixd | { grep -v '^ninja: no work to do' || true; }
if [ "${1:-}" = --pack ]; then
    pack "$2"
    exit
fi
exec build/gpu/tools/gpu_check "$@"
