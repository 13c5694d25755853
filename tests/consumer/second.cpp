// SPDX-License-Identifier: MIT
#include <nprf/feature_map/paper_names.hpp>

// a second translation unit: header-only code must link
nprf::Matrix<float> second(const nprf::Matrix<float>& x) { return nprf::orf<float>(8, 16).queries(x); }
