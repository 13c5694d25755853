// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/packed_plan.cuh"

/// The explicit instantiation of the plans for a storage type S: all their kernels. A program of many files can compile
/// them once: compile all files with NPRF_CUDA_EXTERN_INSTANCES=1, and write in one of them, for each storage type that
/// the program uses,
///
///     #include <nprf/cuda.hpp>
///     NPRF_CUDA_INSTANCES(, float)      // or __half, __nv_bfloat16
#define NPRF_CUDA_INSTANCES(PREFIX, S)                \
  PREFIX template class nprf::cuda::AttentionPlan<S>; \
  PREFIX template class nprf::cuda::DecodePlan<S>;    \
  PREFIX template class nprf::cuda::PackedPlan<S>;

#if NPRF_CUDA_EXTERN_INSTANCES
NPRF_CUDA_INSTANCES(extern, float)
NPRF_CUDA_INSTANCES(extern, __half)
NPRF_CUDA_INSTANCES(extern, __nv_bfloat16)
#endif
