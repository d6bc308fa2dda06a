#!/bin/sh
# image.sh NVCC SOURCE TOP OUTPUT TARGET...: compile SOURCE for every target, and as PTX of the first
# for GPUs that came later, and write it all as a C array.
set -eu
nvcc=$1 source=$2 top=$3 output=$4
shift 4
targets=$*
first=${1#sm_}
set -- -gencode "arch=compute_$first,code=compute_$first"
for target in $targets; do
    set -- "$@" -gencode "arch=compute_${target#sm_},code=$target"
done
"$nvcc" -O3 -Werror all-warnings -I "$top" "$@" -fatbin -o "$output.fatbin" "$source"
{
    echo "#include \"kernels/block_copy_image.h\""
    echo "const char block_copy_targets[] = \"$targets, PTX for newer ones\";"
    echo "const size_t block_copy_image_bytes = $(wc -c <"$output.fatbin");"
    echo "_Alignas(16) const unsigned char block_copy_image[] = {"
    od -An -v -tx1 "$output.fatbin" | sed 's/ \(..\)/0x\1,/g'
    echo "};"
} >"$output"
