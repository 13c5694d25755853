// SPDX-License-Identifier: MIT
// expected: nprf: key_mask must be an array of bool, and std::vector<bool> has none
#include "nprf/attention/options.hpp"

const std::vector<bool> mask(10, true);
const nprf::CallOptions call{.key_mask = mask};
