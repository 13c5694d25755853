// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "support/error.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

/// Weights with tails, and the tolerance of the results of the banded engine.
namespace nprf::test {

inline constexpr double never = -std::numeric_limits<double>::infinity();

/// A bias with N(0,1) between its linear ends.
inline LagBias<double> random_bias(Index first, Index size, double slope_before, double slope_after) {
  return {first, normal_vector<double>(size, 11), slope_before, slope_after};
}

struct NamedBias {
  std::string name;
  LagBias<double> bias;
  Index offset = 0;
  Direction direction = Direction::bidirectional;
};

inline std::vector<NamedBias> biases() {
  std::vector<NamedBias> all{{"no position", {}},
                             {"no position, causal", {}, 0, Direction::causal},
                             {"no position, causal, the past alone", {}, 7, Direction::causal},
                             {"clipped", random_bias(-3, 7, 0, 0)},
                             {"clipped, causal", random_bias(-3, 7, 0, 0), 0, Direction::causal},
                             {"clipped far away", random_bias(-100, 190, 0, 0)},
                             {"a table longer than any sequence", random_bias(-600, 1200, -0.1, -0.1)},
                             {"clipped before, falling after", random_bias(-3, 7, 0, -0.2)},
                             {"falling before, rising after", random_bias(-3, 7, -0.2, 0.01)},
                             {"shifted a little", random_bias(-3, 7, -0.1, 0), 20},
                             {"shifted to the left of all", random_bias(-3, 7, -0.01, -0.02), 700},
                             {"shifted to the right of all", random_bias(-3, 7, -0.01, -0.02), -700}};
  for (const double slope : {-1e-4, -0.1, -5.0, -100.0})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      all.push_back(
          {"ALiBi, slope " + std::to_string(slope), {0, Vector<double>::Zero(1), slope, slope}, 0, direction});
  for (const bool before : {false, true})
    for (const bool after : {false, true}) {
      all.push_back({"zero beyond the table", random_bias(-20, 61, 0, 0)});
      if (before) all.back().bias.table[0] = never;
      if (after) all.back().bias.table[60] = never;
    }
  return all;
}

/// The weights of a bias for all lags of slots.
template <class T>
LagWeights<T> weights_of(const NamedBias& x, Index n_q, Index n_k) {
  const LagBias<T> b{x.bias.first, x.bias.table.cast<T>(), static_cast<T>(x.bias.slope_before),
                     static_cast<T>(x.bias.slope_after)};
  LagWeights<T> c = exp_weights(b, reachable_lags(n_q, n_k, x.offset, x.direction));
  c.first += x.offset;
  return c;
}

/// The error of a table relative to a geometric sequence in its tails: a logarithm x has an error of 2^-53 |x|, and
/// below the smallest number of T it is 0.
template <class T>
LagWeights<double> table_error(const LagWeights<T>& c) {
  LagWeights<double> error{c.first, Vector<double>::Zero(c.values.size())};
  const LagRange middle = c.view().middle();
  for (Index k = 0; k < error.values.size(); ++k) {
    const Index before = middle.first - (c.first + k), after = c.first + k - middle.last;
    const double slope = before > 0 ? c.tails.slope_before : c.tails.slope_after;
    if ((before <= 0 && after <= 0) || slope == 0) continue;
    const double x = static_cast<double>(std::max(before, after)) * slope;
    error.values[k] = 4 * epsilon<double> * (1 + std::abs(x)) * static_cast<double>(c.values[k]) +
                      2 * static_cast<double>(std::numeric_limits<T>::denorm_min());
  }
  return error;
}

/// The largest ratio of |got - Y| to its tolerance, for the given rows.
template <class T>
double rows_error(const LagWeights<T>& c, const LagWeights<double>& c_error, const Matrix<T>& A, const Matrix<T>& B,
                  const Matrix<T>& U, const Matrix<T>& got, const std::vector<Index>& rows) {
  const Product reference = reference_product(c, A, B, U, rows);
  // the sum of a tail is rounded twice in each tile of 30 tokens
  const Index passes = (A.rows() + B.rows()) / 15;
  Matrix<double> tolerance = direct_growth<T>(A.cols(), B.rows() + passes) * reference.magnitude;
  if (!c_error.values.isZero(0)) {
    const Matrix<double> a = A.template cast<double>(), b = B.template cast<double>(), u = U.template cast<double>();
    tolerance += reference_product(c_error, a, b, u, rows).magnitude;
    // a sum that has decayed to subnormal numbers has an error of some of them
    const double least = 8 * static_cast<double>(std::numeric_limits<T>::denorm_min());
    for (Index i = 0; i < tolerance.rows(); ++i)
      tolerance.row(i).array() += least * (1 + a.row(rows[static_cast<std::size_t>(i)]).cwiseAbs().sum());
  }
  return worst_ratio(pick(got, rows), reference.values, tolerance);
}

/// The same for dc in the band, and for the moments of dc in the tails.
template <class T>
double moments_error(const LagWeights<T>& c, const LagWeights<double>& c_error, const Matrix<T>& A, const Matrix<T>& B,
                     const Matrix<T>& U, const Matrix<T>& G, const Vector<T>& dc) {
  const Index n_q = A.rows(), n_k = B.rows();
  const LagRange middle = c.view().middle(), support = c.support();
  const bool reaches_before = c.first <= -(n_q - 1), reaches_after = c.last() >= n_k - 1;
  const Matrix<double> a = A.template cast<double>(), b = B.template cast<double>(), u = U.template cast<double>(),
                       g = G.template cast<double>();
  const Matrix<double> term = (a * b.transpose()).cwiseProduct(g * u.transpose());
  const Matrix<double> size =
      (a.cwiseAbs() * b.cwiseAbs().transpose()).cwiseProduct(g.cwiseAbs() * u.cwiseAbs().transpose());
  Vector<double> sum = Vector<double>::Zero(n_q + n_k - 1), magnitude = sum;
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      sum[j - i + n_q - 1] += term(i, j);
      magnitude[j - i + n_q - 1] += size(i, j);
    }
  const double growth = direct_growth<T>(A.cols() + U.cols(), std::min(n_q, n_k));
  double worst = 0;
  constexpr double least = static_cast<double>(std::numeric_limits<T>::denorm_min());
  double error[2][2] = {},
         tolerance[2][2] = {{least, least}, {least, least}};  // before and after; sums of c dc and of k c dc
  for (Index l = 0; l < sum.size(); ++l) {
    const Index lag = l - (n_q - 1), before = middle.first - lag, after = lag - middle.last;
    if (lag < support.first || lag > support.last) continue;
    if ((before > 0 && reaches_before) || (after > 0 && reaches_after)) {
      const int side = before > 0 ? 0 : 1;
      const double k = static_cast<double>(std::max(before, after)), weight = static_cast<double>(c[lag]);
      for (const int power : {0, 1}) {
        const double f = power == 0 ? 1 : k;
        error[side][power] += f * weight * (static_cast<double>(dc[l]) - sum[l]);
        tolerance[side][power] += f * (growth * weight + c_error[lag]) * magnitude[l];
      }
    } else {
      worst = std::max(worst, worst_ratio(Vector<double>::Constant(1, dc[l]), Vector<double>::Constant(1, sum[l]),
                                          growth * magnitude[l]));
    }
  }
  for (const int side : {0, 1})
    for (const int power : {0, 1})
      if (error[side][power] != 0) {
        const double ratio = std::abs(error[side][power]) / tolerance[side][power];
        worst = ratio <= worst ? worst : ratio;
      }
  return std::isnan(worst) ? std::numeric_limits<double>::infinity() : worst;
}

/// The largest ratio of error to tolerance of all results, for at most that many rows of each; the product may be that
/// with U or with [U 1].
template <class T>
double banded_error(const InSlots<T>& x, const Matrix<T>& Y, Index rows = 40) {
  const Matrix<T> U = Y.cols() > x.U.cols() ? with_ones(x.U) : x.U;
  return rows_error(x.c, table_error(x.c), spread(x.A, x.queries, x.span.n_q), spread(x.B, x.keys, x.span.n_k),
                    spread(U, x.keys, x.span.n_k), spread(Y, x.queries, x.span.n_q), some_rows(x.span.n_q, rows));
}
template <class T>
double banded_error(const InSlots<T>& x, const toeplitz::Gradients<T>& d, Index rows = 40) {
  const auto in_q = [&](const Matrix<T>& X) { return spread(X, x.queries, x.span.n_q); };
  const auto in_k = [&](const Matrix<T>& X) { return spread(X, x.keys, x.span.n_k); };
  const Matrix<T> A = in_q(x.A), B = in_k(x.B), U = in_k(x.U), G = in_q(x.G);
  const LagWeights<T> ct = transposed(x.c);
  const LagWeights<double> rounding = table_error(x.c), rounding_t = transposed(rounding);
  const auto q = some_rows(x.span.n_q, rows), k = some_rows(x.span.n_k, rows);
  return std::max({rows_error(x.c, rounding, G, U, B, in_q(d.dA), q),
                   rows_error(ct, rounding_t, U, G, A, in_k(d.dB), k),
                   rows_error(ct, rounding_t, B, A, G, in_k(d.dU), k), moments_error(x.c, rounding, A, B, U, G, d.dc)});
}

}  // namespace nprf::test
