#!/bin/sh
# no_cuda_linked.sh FILE...: nothing of CUDA's is linked to, so that all of it starts where there is no
# driver.
for file in "$@"; do
    if nm -u "$file" | grep -E ' cu(da)?[A-Z]' || ldd "$file" | grep -E 'libcuda|libcudart'; then
        echo "$file needs CUDA to start"
        exit 1
    fi
    nm -u "$file" | grep -q dlopen || nm -D "$file" | grep -q . || { echo "$file: no symbols to look at"; exit 1; }
done
