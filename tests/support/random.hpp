// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/normal.hpp"

namespace nprf::test {

/// Independent N(0,1) deviates; the same on every run.
template <class T>
Matrix<T> normal(Index rows, Index cols, std::uint64_t seed) {
  return NormalDeviates(seed).matrix(rows, cols).template cast<T>();
}

template <class T>
Vector<T> normal_vector(Index size, std::uint64_t seed) {
  return normal<T>(size, 1, seed).col(0);
}

}  // namespace nprf::test
