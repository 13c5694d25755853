// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda.hpp"

/// Plans are instantiated once for all tests, in plans.cpp.
extern template class nprf::cuda::AttentionPlan<float>;
extern template class nprf::cuda::AttentionPlan<__half>;
extern template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
extern template class nprf::cuda::DecodePlan<float>;
