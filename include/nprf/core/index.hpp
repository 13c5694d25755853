// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>

namespace nprf {

// include/nprf/README.md lists the letters of sizes (n_q, n_k, d, d_v, m, r, p, h) and the words of this code.

/// The type of sizes, positions and lags; the same as Eigen::Index, without Eigen.
using Index = std::ptrdiff_t;

template <class T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;

}  // namespace nprf
