// SPDX-License-Identifier: MIT
// expected: nprf: the first argument of MultiHeadAttention must model nprf::FeatureMap
#include "nprf/attention/multi_head_attention.hpp"

const nprf::MultiHeadAttention attention(4, nprf::NoPosition<float>());
