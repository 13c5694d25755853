// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/feature_map/paper_names.hpp"

const auto map = nprf::orf<int>(4, 8);
