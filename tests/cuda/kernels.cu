// SPDX-License-Identifier: MIT
//
// Every kernel, for the compiler to look at (compile).
#include "nprf/cuda/plan/attention_plan.cuh"

template class nprf::cuda::AttentionPlan<float>;
template class nprf::cuda::AttentionPlan<__half>;
template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
