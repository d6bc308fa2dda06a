#!/bin/sh
# targets.sh NVCC: what the kernels are compiled for, on one line: the A100's and the H100's, and the
# newest that this nvcc knows. Fails, and says why, where nvcc does not work.
set -eu
nvcc=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo 'extern "C" __global__ void nothing(void) {}' >"$dir/nothing.cu"
known=$("$nvcc" --list-gpu-code 2>&1 | grep -xE 'sm_[0-9]+' | sort -V)
if [ -z "$known" ]; then
    echo "it lists no targets" >&2
    exit 1
fi
newest=$(echo "$known" | tail -n 1)
targets=$(echo "$known" | grep -xE "sm_80|sm_90|$newest" | paste -sd ' ')
if ! "$nvcc" -cubin -arch="$newest" -o "$dir/nothing.cubin" "$dir/nothing.cu" >"$dir/log" 2>&1; then
    echo "it cannot compile an empty kernel: $(grep -m 1 . "$dir/log" || echo no reason given)" >&2
    exit 1
fi
echo "$targets"
