#!/bin/sh
# spills.sh NVCC SOURCE TOP TARGET...: no kernel of SOURCE spills a register, whatever it is compiled
# for. A kernel that has to spill is seen to be found first.
set -eu
nvcc=$1 source=$2 top=$3
shift 3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# spills TARGET FILE [OPTION]: how many lines of ptxas report a spill; 2: it reported nothing at all.
spills() {
    target=$1 file=$2
    shift 2
    "$nvcc" -O3 -I "$top" -cubin -arch="$target" -Xptxas -v "$@" -o "$dir/out.cubin" "$file" \
        >"$dir/log" 2>&1 || { cat "$dir/log" >&2; return 2; }
    grep -q 'bytes spill stores' "$dir/log" || { cat "$dir/log" >&2; return 2; }
    grep -E '(stack frame|spill)' "$dir/log" | grep -cvE '^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' || true
}

cat >"$dir/spiller.cu" <<'END'
extern "C" __global__ void spiller(volatile int *p)
{
    int v[96];
#pragma unroll
    for (int k = 0; k < 96; k++)
        v[k] = p[k];
#pragma unroll
    for (int k = 0; k < 96; k++)
        p[95 - k] = v[k];
}
END

bad=0
for target in "$@"; do
    n=$(spills "$target" "$dir/spiller.cu" -maxrregcount=32)
    if [ "$n" = 0 ]; then
        echo "$target: a spill was not seen"
        bad=1
    fi
    n=$(spills "$target" "$source")
    sed -n "s/^ptxas info *: \(Used.*\)/$target: \1/p" "$dir/log"
    if [ "$n" != 0 ]; then
        grep spill "$dir/log"
        echo "$target: registers are spilled"
        bad=1
    fi
done
exit "$bad"
