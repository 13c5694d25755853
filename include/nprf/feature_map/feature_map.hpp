// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

// Eigen's matrices claim to convert between scalars, and fail when asked to
template <class M, class T>
concept MatrixOf = std::convertible_to<M, Matrix<T>> && std::same_as<typename std::remove_cvref_t<M>::Scalar, T>;

}  // namespace detail

/// What attention asks of a feature map phi. One that users may write, in full:
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
/// queries may leave out one positive factor a row, keys one positive factor for the whole call: attention does not
/// change. A map that can tell the factors that queries leaves out may have
///     void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team&, T* log_factor) const;
/// too: phi(scale_i x_i) = exp(log_factor_i) times row i. Then causal attention asks it for the keys, so that no key's
/// features depend on another's. A map may say what its features of a row of at most some norm are off by, relative to
/// themselves, or to |phi| if they have signs:
///     double relative_error(double norm) const;
/// features of one that does not count as exact in Report::error_bound. A map of exponentials may have
///     void logs(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> z, const Team&) const;
/// the logarithms of phi(scale_i x_i) but for a constant, for rows whose features underflow beside others, if its
/// backward depends on the products of phi and dphi alone. Several threads may call a map at a time.
/// backward gets phi as queries or keys returned it, takes those factors for constants, and returns dx.
template <class F>
concept FeatureMap = Real<typename F::Scalar> && requires(const F& f, const MatrixView<typename F::Scalar>& x) {
  { f.input_dim() } -> std::convertible_to<Index>;
  { f.output_dim() } -> std::convertible_to<Index>;
  { f.queries(x) } -> detail::MatrixOf<typename F::Scalar>;
  { f.keys(x) } -> detail::MatrixOf<typename F::Scalar>;
  { f.backward(x, x, x) } -> detail::MatrixOf<typename F::Scalar>;
};

/// True if phi(x).phi(y) estimates exp(x.y), so that Normalization::none() scales by d^(-1/4). A map that does not
/// says `static constexpr bool estimates_exp = false;`.
template <class F>
constexpr bool estimates_exp() {
  if constexpr (requires { F::estimates_exp; })
    return F::estimates_exp;
  else
    return true;
}

/// True if no feature is ever negative, so that every denominator is positive. Such a map says
/// `static constexpr bool is_positive = true;`.
template <class F>
constexpr bool is_positive() {
  if constexpr (requires { F::is_positive; })
    return F::is_positive;
  else
    return false;
}

}  // namespace nprf
