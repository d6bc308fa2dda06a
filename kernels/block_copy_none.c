/* A build without nvcc: the copy engine does all. */
#include "kernels/block_copy_image.h"

const unsigned char block_copy_image[] = {0};
const size_t block_copy_image_bytes = 0;
const char block_copy_targets[] = "none: built without nvcc";
