// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"

/// The explicit instantiation of the plan for a storage type S: all its kernels. A program of many files can compile
/// them once: compile all files with NPRF_CUDA_EXTERN_INSTANCES=1, and write in one of them, for each storage type that
/// the program uses,
///
///     #include <nprf/cuda.hpp>
///     NPRF_CUDA_INSTANCES(, float)      // or __half, __nv_bfloat16
#define NPRF_CUDA_INSTANCES(PREFIX, S) PREFIX template class nprf::cuda::AttentionPlan<S>;

#if NPRF_CUDA_EXTERN_INSTANCES
NPRF_CUDA_INSTANCES(extern, float)
NPRF_CUDA_INSTANCES(extern, __half)
NPRF_CUDA_INSTANCES(extern, __nv_bfloat16)
#endif
