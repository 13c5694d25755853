// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/plan/attention_plan_definition.cuh"
#include "nprf/cuda/plan/decode_plan_definition.cuh"

/// Instantiates all plans, with all their kernels, for a storage type S. With it a program of many files compiles the
/// kernels only once. Compile all its files with NPRF_CUDA_EXTERN_INSTANCES=1: then <nprf/cuda.hpp> only declares the
/// plans. One of the files has, for each storage type that the program uses,
///
///     #include <nprf/cuda/instances.cuh>
///     NPRF_CUDA_INSTANCES(float)      // or __half, __nv_bfloat16
#define NPRF_CUDA_INSTANCES(S)                 \
  template class nprf::cuda::AttentionPlan<S>; \
  template class nprf::cuda::DecodePlan<S>;
