#define VARIANT avx512
#include "kernels.inc"
