// SPDX-License-Identifier: MIT
// expected: nprf: lengths must be nprf::Index: pass a std::vector<nprf::Index>
#include "nprf/attention/options.hpp"

const std::vector<int> lengths{3, 4};
const nprf::CallOptions call{.lengths = lengths};
