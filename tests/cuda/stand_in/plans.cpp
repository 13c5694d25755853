// SPDX-License-Identifier: MIT
//
// The plans of all tests.
#include "nprf/cuda/instances.cuh"

NPRF_CUDA_INSTANCES(float)
NPRF_CUDA_INSTANCES(__half)
NPRF_CUDA_INSTANCES(__nv_bfloat16)
