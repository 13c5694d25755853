// SPDX-License-Identifier: MIT
//
// Instantiates every kernel, to be compiled by tests/cuda/compile.
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/packed_plan.cuh"

template class nprf::cuda::AttentionPlan<float>;
template class nprf::cuda::AttentionPlan<__half>;
template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
template class nprf::cuda::DecodePlan<float>;
template class nprf::cuda::DecodePlan<__half>;
template class nprf::cuda::DecodePlan<__nv_bfloat16>;
template class nprf::cuda::PackedPlan<float>;
template class nprf::cuda::PackedPlan<__half>;
template class nprf::cuda::PackedPlan<__nv_bfloat16>;
