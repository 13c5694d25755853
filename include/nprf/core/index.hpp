// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>

namespace nprf {

// Letters used in all headers: n_q queries; n_k keys; d head dimension; d_v value dimension; m random vectors;
// r features (the output_dim of a feature map); h heads; lag = j - i (key position minus query position).

/// The type of sizes, positions and lags; the same as Eigen::Index, without Eigen.
using Index = std::ptrdiff_t;

template <class T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;

}  // namespace nprf
