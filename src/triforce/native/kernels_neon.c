#define VARIANT neon
#include "kernels.inc"
