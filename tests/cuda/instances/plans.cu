// SPDX-License-Identifier: MIT
//
// The plans of main.cu.
#include "nprf/cuda/instances.cuh"

NPRF_CUDA_INSTANCES(float)
