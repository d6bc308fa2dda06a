/*
 * block_copy_image.h - the compiled kernels: made from block_copy.cu by image.sh where there is an
 * nvcc, else block_copy_none.c.
 */
#ifndef KERNELS_BLOCK_COPY_IMAGE_H
#define KERNELS_BLOCK_COPY_IMAGE_H

#include <stddef.h>

extern const unsigned char block_copy_image[];
extern const size_t block_copy_image_bytes; /* 0: this build has none */
extern const char block_copy_targets[];     /* for people */

#endif
