// SPDX-License-Identifier: MIT
#pragma once

// The templates that the tests of attention use besides nprf's own instances; they are compiled once, too.

#include "support/features_tolerance.hpp"

#define NPRF_TESTS_INSTANCES(PREFIX, T)                                                                        \
  PREFIX template nprf::Matrix<double> nprf::test::features_tolerance(                                         \
      const nprf::Matrix<T>&, const nprf::Matrix<T>&, const std::vector<nprf::Index>&, const nprf::Matrix<T>&, \
      const nprf::Matrix<T>&, const nprf::PositionView<T>&, nprf::Direction, nprf::Engine, nprf::Index);

#if NPRF_SEPARATE
NPRF_TESTS_INSTANCES(extern, float)
NPRF_TESTS_INSTANCES(extern, double)
#endif
