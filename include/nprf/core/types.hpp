// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <concepts>
#include <span>

#include "nprf/config.hpp"
#include "nprf/core/engine.hpp"

namespace nprf {

// Letters, used everywhere: n_q, n_k tokens; d head dimension; d_v value dimension; m random vectors;
// r features (a feature map's output_dim); h heads; lag = j - i (key position minus query position).

using Index = Eigen::Index;
static_assert(sizeof(Index) == 8,
              "nprf: Eigen::Index must have 64 bits: leave EIGEN_DEFAULT_DENSE_INDEX_TYPE alone, on a 64-bit platform");

/// A row is a token.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Read access to anybody's matrix: row-major matrices, maps and blocks are viewed in place, all else is copied.
template <class T>
using MatrixView = Eigen::Ref<const Matrix<T>, 0, Eigen::OuterStride<>>;

/// Write access to a row-major matrix, map or block.
template <class T>
using MatrixRef = Eigen::Ref<Matrix<T>, 0, Eigen::OuterStride<>>;

/// Scratch memory seen as a matrix or a vector (workspace.hpp).
template <class T>
using MatrixMap = Eigen::Map<Matrix<T>, Eigen::Aligned64>;
template <class T>
using VectorMap = Eigen::Map<Vector<T>, Eigen::Aligned64>;

/// One factor a row; an empty span stands for all ones.
template <class T>
using RowScale = std::span<const T>;

template <class T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;

namespace detail {

template <class T>
consteval bool only_real() {
  static_assert(Real<T>, "nprf: the scalar must be float or double");
  return Real<T>;
}

}  // namespace detail

/// Real, for what users name: another scalar stops the compiler with a sentence. Real can be asked.
template <class T>
concept OnlyReal = detail::only_real<T>();

}  // namespace nprf
