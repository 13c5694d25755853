// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/reference/softmax_attention.hpp"

const auto y = nprf::reference::softmax_attention<int>(nprf::Matrix<int>(), nprf::Matrix<int>(), nprf::Matrix<int>(),
                                                       nprf::NoPosition<float>(), nprf::Direction::causal,
                                                       nprf::Normalization::none());
