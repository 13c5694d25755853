// SPDX-License-Identifier: MIT
// expected: nprf: the scalar of a view of heads must be float or double, or const
#include "nprf/attention/heads_view.hpp"

nprf::HeadsView<int> view{nullptr, 0, 0, 0, 0};
