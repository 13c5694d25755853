// SPDX-License-Identifier: MIT
// expected: nprf: Eigen::Index must have 64 bits
// flags: -DEIGEN_DEFAULT_DENSE_INDEX_TYPE=int
#include "nprf/core/types.hpp"
