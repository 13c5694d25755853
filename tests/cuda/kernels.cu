// SPDX-License-Identifier: MIT
//
// Instantiates every kernel, or those of the storage types in NPRF_STORAGES, to be compiled by tests/cuda/compile.
#include "nprf/cuda/instances.cuh"

#ifndef NPRF_STORAGES
#define NPRF_STORAGES KERNELS(float) KERNELS(__half) KERNELS(__nv_bfloat16)
#endif
#define KERNELS(S) NPRF_CUDA_INSTANCES(S)
NPRF_STORAGES
