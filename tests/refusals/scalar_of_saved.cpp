// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/attention/saved.hpp"

nprf::Saved<int> saved;
