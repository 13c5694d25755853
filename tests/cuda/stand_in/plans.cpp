// SPDX-License-Identifier: MIT
#include "cuda/stand_in/plans.hpp"

template class nprf::cuda::AttentionPlan<float>;
template class nprf::cuda::AttentionPlan<__half>;
template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
template class nprf::cuda::DecodePlan<float>;
