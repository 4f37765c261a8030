#define VARIANT portable
#include "kernels.inc"
