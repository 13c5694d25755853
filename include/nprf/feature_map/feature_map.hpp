// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

// Eigen matrices report that they are convertible to other scalars, but the conversion does not compile
template <class M, class T>
concept MatrixOf = std::convertible_to<M, Matrix<T>> && std::same_as<typename std::remove_cvref_t<M>::Scalar, T>;

}  // namespace detail

/// The requirements of attention on a feature map phi. A complete example of a user's own map:
///
///     struct Squares {
///       using Scalar = float;
///       Index input_dim() const { return d; }
///       Index output_dim() const { return d; }
///       Matrix<float> queries(const MatrixView<float>& x) const { return x.array().square(); }  // (n,d) -> (n,r)
///       Matrix<float> keys(const MatrixView<float>& x) const { return queries(x); }             // (n,d) -> (n,r)
///       Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>& /* phi */,
///                              const MatrixView<float>& dphi) const { return 2 * x.cwiseProduct(dphi); }  // (n,d)
///       Index d;
///     };
///
/// queries may omit one positive factor for each row, and keys one positive factor for the whole call: these factors
/// cancel in attention. backward gets phi as queries or keys returned it, treats the omitted factors as constants, and
/// returns dx. Several threads may call a map at the same time.
///
/// A map may have further members:
///
///     void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team&, T* log_factor) const;
///
/// writes the features of the rows scale_i x_i to phi. It also writes their log-factors to log_factor (n): the
/// log-factor of a row is the logarithm of the factor that its features omit, so that
/// phi(scale_i x_i) = exp(log_factor_i) times row i of phi. Causal attention then calls this function for the keys too,
/// so that the features of a key do not depend on other keys.
///
///     double relative_error(double norm) const;
///
/// returns a bound of the error of the features of any row x_i with |x_i| <= norm. The bound is relative to each
/// feature, or to |phi(x_i)| if features can be negative. Without relative_error, Report::error_bound treats the
/// features as exact.
///
/// A map whose keys have other features than queries, as Centred (centred.hpp) has, also has
///     void keys_by_row(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team&, T* log_factor) const;
///     void backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
///                        MatrixRef<T> dx, const Team&) const;
/// keys_by_row does for keys what queries with log_factor does for queries. backward_keys does for keys what backward
/// does for queries.
template <class F>
concept FeatureMap = Real<typename F::Scalar> && requires(const F& f, const MatrixView<typename F::Scalar>& x) {
  { f.input_dim() } -> std::convertible_to<Index>;
  { f.output_dim() } -> std::convertible_to<Index>;
  { f.queries(x) } -> detail::MatrixOf<typename F::Scalar>;
  { f.keys(x) } -> detail::MatrixOf<typename F::Scalar>;
  { f.backward(x, x, x) } -> detail::MatrixOf<typename F::Scalar>;
};

/// True if phi(x).phi(y) estimates exp(x.y), so that Normalization::none() multiplies queries and keys by d^(-1/4). A
/// map that does not estimate exp(x.y) must declare `static constexpr bool estimates_exp = false;`.
template <class F>
constexpr bool estimates_exp() {
  if constexpr (requires { F::estimates_exp; })
    return F::estimates_exp;
  else
    return true;
}

/// True if no feature is negative, so that every denominator is positive. Such a map declares
/// `static constexpr bool is_positive = true;`.
template <class F>
constexpr bool is_positive() {
  if constexpr (requires { F::is_positive; })
    return F::is_positive;
  else
    return false;
}

/// True if attention may compute a row by exact softmax when all products of the row's features underflow. Such a map
/// declares `static constexpr bool estimates_exp = true;`. For other maps such a row is summed in double instead.
template <class F>
constexpr bool falls_back_to_softmax() {
  return requires { F::estimates_exp; } && estimates_exp<F>();
}

/// True if each row that queries with log_factor writes, and that keys_by_row writes (FeatureMap), has the same bits
/// for any other rows of x. Such a map declares `static constexpr bool has_independent_rows = true;`. A Decoder passes
/// it the rows of several tokens at once.
template <class F>
constexpr bool has_independent_rows() {
  if constexpr (requires { F::has_independent_rows; })
    return F::has_independent_rows;
  else
    return false;
}

/// True if phi(x).phi(y) is a truncated series of exp(x.y) with terms of both signs. Where the terms nearly cancel, the
/// omitted terms matter: attention then computes the row by exact softmax. Such a map declares `static constexpr bool
/// is_series = true;`.
template <class F>
constexpr bool is_series() {
  if constexpr (requires { F::is_series; })
    return F::is_series;
  else
    return false;
}

}  // namespace nprf
