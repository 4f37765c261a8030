#define VARIANT avx2
#include "kernels.inc"
