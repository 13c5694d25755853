// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/feature_map/elu.hpp"

nprf::EluFeatures<int> map(4);
