// SPDX-License-Identifier: MIT
//
// Instantiates every kernel, or those of the storage types in NPRF_STORAGES, to be compiled by tests/cuda/compile.
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/packed_plan.cuh"

#ifndef NPRF_STORAGES
#define NPRF_STORAGES KERNELS(float) KERNELS(__half) KERNELS(__nv_bfloat16)
#endif
#define KERNELS(S)                             \
  template class nprf::cuda::AttentionPlan<S>; \
  template class nprf::cuda::DecodePlan<S>;    \
  template class nprf::cuda::PackedPlan<S>;
NPRF_STORAGES
