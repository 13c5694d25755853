// SPDX-License-Identifier: MIT
#include <nprf/nprf.hpp>

// a second translation unit: header-only code must link
nprf::Matrix<float> second(const nprf::Matrix<float>& x) { return nprf::orf<float>(8, 16).queries(x); }
