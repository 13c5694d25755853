// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <vector>

#include "nprf/position/grid.hpp"
#include "support/attention.hpp"
#include "support/random.hpp"

/// Positions and masks with holes, for the tests of weights.
namespace nprf::test {

/// A grid of 3 x 4 cells and E extra tokens with N(0,1) biases, some of them -infinity.
inline GridPosition<double> holed_grid(Index E) {
  constexpr double never = -std::numeric_limits<double>::infinity();
  Matrix<double> b = normal<double>(5, 7, 1), extra = normal<double>(E, E + 2, 2);
  b(0, 0) = b(2, 4) = b(3, 3) = never;
  if (E > 0) extra(0, 0) = extra(E - 1, 1) = extra(0, 2) = never;
  return {3, 4, b, extra};
}

/// The mask of n keys in which these alone are true.
inline Mask mask_of(Index n, const std::vector<Index>& keys) {
  Mask mask = Mask::Constant(n, false);
  for (const Index j : keys) mask[j] = true;
  return mask;
}

}  // namespace nprf::test
