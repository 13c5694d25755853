// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <concepts>
#include <span>

#include "nprf/config.hpp"
#include "nprf/core/engine.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

static_assert(std::same_as<Eigen::Index, Index> && sizeof(Index) == 8,
              "nprf: Eigen::Index must have 64 bits: do not define EIGEN_DEFAULT_DENSE_INDEX_TYPE, and build for a "
              "64-bit platform");

/// A row-major matrix; each row is a token.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Read access to a matrix. Row-major matrices, maps and blocks are read in place; other expressions are copied.
template <class T>
using MatrixView = Eigen::Ref<const Matrix<T>, 0, Eigen::OuterStride<>>;

/// Write access to a row-major matrix, map or block.
template <class T>
using MatrixRef = Eigen::Ref<Matrix<T>, 0, Eigen::OuterStride<>>;

/// A matrix or a vector in scratch memory (workspace.hpp).
template <class T>
using MatrixMap = Eigen::Map<Matrix<T>, Eigen::Aligned64>;
template <class T>
using VectorMap = Eigen::Map<Vector<T>, Eigen::Aligned64>;

/// One factor for each row of a matrix; an empty span means that all factors are 1.
template <class T>
using RowScale = std::span<const T>;

namespace detail {

template <class T>
consteval bool only_real() {
  static_assert(Real<T>, "nprf: the scalar must be float or double");
  return Real<T>;
}

}  // namespace detail

/// The same condition as Real, for the templates that users instantiate. For any other scalar, OnlyReal is a
/// compilation error with a readable message, where Real is only false.
template <class T>
concept OnlyReal = detail::only_real<T>();

}  // namespace nprf
