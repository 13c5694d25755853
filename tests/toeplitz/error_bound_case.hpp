// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/product.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"

/// Gradients compared with plain sums of higher precision: their errors beyond direct rounding, over the error bound of
/// an engine.
namespace nprf::test {

/// A type with more digits than T.
template <Real T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;

/// A bias for which some rows of a product fail the error bound of an FFT, or none does.
struct HostileBias {
  std::string name;
  std::function<double(double)> of;  // a lag

  /// exp(b) of all lags of n_q queries and n_k keys, up to a last one.
  template <Real T>
  LagWeights<T> weights(Index n_q, Index n_k, Index last) const {
    LagWeights<T> c{-(n_q - 1), Vector<T>(n_q + n_k - 1)};
    for (Index lag = c.first; lag < n_k; ++lag)
      c.values[lag - c.first] = lag > last ? T(0) : static_cast<T>(std::exp(of(static_cast<double>(lag))));
    return c;
  }
};

inline std::vector<HostileBias> hostile_biases() {
  std::vector<HostileBias> all{{"no bias", [](double) { return 0.0; }}};
  for (const double s : {-0.03, 0.1})
    all.push_back({"rising by " + std::to_string(s), [s](double lag) { return s * lag; }});
  for (const double at : {-150.0, -1.0, 120.0})
    all.push_back({"a peak at " + std::to_string(at), [=](double lag) { return lag == at ? 20.0 : 0.0; }});
  all.push_back({"a cosine", [](double lag) { return 3 * std::cos(0.3 * lag); }});
  all.push_back({"alibi", [](double lag) { return -0.3 * std::abs(lag); }});
  return all;
}

/// Factors with ones as last column of U, G of at most 1, and the sizes of rows: |G_i.U_j| is at most twice the size.
template <Real T>
struct ErrorBoundCase {
  std::string name;
  Matrix<T> A, B, U, G;
  Vector<T> sizes;
  bool all_positive = true;
  Vector<double> e = {};  // log-scales of keys, or empty
};

/// Inputs that are known to make rounding errors large or correlated.
template <Real T>
std::vector<ErrorBoundCase<T>> error_bound_cases(Index n_q, Index n_k, Index r, Index p) {
  const auto features = [](Index n, Index cols, double spread, std::uint64_t seed) {
    return Matrix<T>((spread * normal<double>(n, cols, seed)).array().exp().template cast<T>());
  };
  const auto make = [&](std::string name, const auto& change, bool all_positive = true) {
    ErrorBoundCase<T> x{std::move(name),
                        features(n_q, r, 1, 1),
                        features(n_k, r, 1, 2),
                        normal<T>(n_k, p, 3),
                        normal<T>(n_q, p, 5),
                        (2 * normal<double>(n_q, 1, 8)).array().exp().matrix().template cast<T>(),
                        all_positive};
    x.U /= x.U.cwiseAbs().maxCoeff();
    x.U.col(p - 1).setOnes();
    x.G /= x.G.cwiseAbs().maxCoeff();
    change(x);
    const T largest = x.U.leftCols(p - 1).cwiseAbs().maxCoeff();
    x.sizes =
        x.sizes.cwiseMax(largest * x.G.leftCols(p - 1).cwiseAbs().rowwise().sum()).cwiseMax(x.G.col(p - 1).cwiseAbs());
    return x;
  };
  const Index i = n_q / 3, j = n_k / 2;
  const auto signs = [&](ErrorBoundCase<T>& x) { x.A = normal<T>(n_q, r, 1), x.B = normal<T>(n_k, r, 2); };
  std::vector<ErrorBoundCase<T>> all;
  all.push_back(make("benign", [](auto&) {}));
  all.push_back(
      make("features of all sizes", [&](auto& x) { x.A = features(n_q, r, 4, 1), x.B = features(n_k, r, 4, 2); }));
  all.push_back(make("small features beside large ones", [&](auto& x) {
    for (Index k = 0; k < r; ++k) x.A.col(k) *= std::pow(T(1e-2), static_cast<T>(k)), x.B.col(k) *= k % 2 ? T(1e3) : 1;
  }));
  all.push_back(make("a row of G far above the others", [&](auto& x) {
    x.G *= T(1e-6), x.sizes *= T(1e-6);
    x.G.row(i) /= x.G.row(i).cwiseAbs().maxCoeff();
    x.sizes[i] = 1;
  }));
  all.push_back(make("a row of A far above the others", [&](auto& x) { x.A.row(i) *= T(1e6); }));
  all.push_back(make("a row of B far above the others", [&](auto& x) { x.B.row(j) *= T(1e6); }));
  all.push_back(make("columns of G of all sizes", [&](auto& x) {
    for (Index k = 0; k < p; k += 2) x.G.col(k) *= T(1e-4), x.G(i, k) = T(1e-4);
  }));
  all.push_back(make("all columns alike", [&](auto& x) {
    x.A.setConstant(T(0.7)), x.B.setConstant(T(1.3)), x.U.setOnes(), x.sizes.setZero();
    x.G.setConstant(T(0.9) / static_cast<T>(p - 1)), x.G.col(p - 1).setConstant(T(0.9));
  }));
  all.push_back(make("a wave of the cosine's frequency", [&](auto& x) {
    for (Index k = 0; k < n_k; ++k) x.U.row(k).head(p - 1).setConstant(static_cast<T>(std::cos(0.3 * double(k))));
    for (Index k = 0; k < n_q; ++k) x.G.row(k).setConstant(static_cast<T>(std::cos(0.3 * double(k))));
  }));
  all.push_back(make("features of both signs", signs, false));
  all.push_back(make(
      "features of both signs, a row of A far above the others",
      [&](auto& x) {
        signs(x);
        x.A.row(i) *= T(1e6);
      },
      false));
  all.push_back(make(
      "features of both signs, each of a few tokens",
      [&](auto& x) {
        for (Matrix<T>* X : {&x.A, &x.B})
          for (Index k = 0; k < X->rows(); ++k)
            for (Index f = 0; f < r; ++f)
              if (f != k % r) (*X)(k, f) = 0;
      },
      false));
  return all;
}

/// The errors of the gradients of an engine beyond direct rounding, over their error bound.
struct BoundRatios {
  double most = 0;
  std::string where;        // the most
  std::vector<double> all;  // of each gradient with an error bound, its whole error
};

/// The sums, and the sums of the magnitudes of their terms.
template <Real T>
class ExactGradients {
 public:
  using W = Wide<T>;

  /// O(r + p) for each pair that a lag of the weights' support lies between.
  ExactGradients(const LagWeights<T>& c, const ErrorBoundCase<T>& x)
      : m_x(x), m_c(c), A(wide(x.A)), B(wide(x.B)), G(wide(x.G)), U(wide(x.U)) {
    const Index n_q = A.rows(), n_k = B.rows();
    dA.setZero(n_q, A.cols());
    for (Matrix<W>* sums : {&dB, &dB_size}) sums->setZero(n_k, A.cols());
    for (Matrix<W>* sums : {&dU, &dU_size}) sums->setZero(n_k, U.cols());
    for (Vector<W>* sums : {&dc, &dc_size, &lags}) sums->setZero(n_q + n_k - 1);
    keys.setZero(n_k);
    const Vector<W> a = A.rowwise().norm(), b = B.rowwise().norm();
    const LagRange support = c.support();
    double largest = -std::numeric_limits<double>::infinity();
    for (Index i = 0, seen = 0; i < n_q; ++i) {
      for (; x.e.size() > 0 && seen < n_k && seen <= i + support.last; ++seen) largest = std::max(largest, x.e[seen]);
      for (Index j = std::max<Index>(i + support.first, 0); j < std::min(i + support.last + 1, n_k); ++j) {
        const W e = x.e.size() > 0 ? static_cast<W>(std::exp(x.e[j] - largest)) : 1, w = c[j - i] * e;
        const auto [s, s_size] = dot(A, i, B, j);
        const auto [t, t_size] = dot(G, i, U, j);
        for (Index f = 0; f < A.cols(); ++f) {
          dA(i, f) += w * t * B(j, f);
          dB(j, f) += w * t * A(i, f);
          dB_size(j, f) += w * t_size * std::abs(A(i, f));
        }
        for (Index k = 0; k < U.cols(); ++k) {
          dU(j, k) += w * s * G(i, k);
          dU_size(j, k) += w * s_size * std::abs(G(i, k));
        }
        const W size = x.sizes[i] * (x.all_positive ? s : a[i] * b[j]);
        keys[j] += w * size;
        const Index lag = j - i + n_q - 1;
        dc[lag] += s * t * e;
        dc_size[lag] += s_size * t_size * e;
        lags[lag] += size * e;
      }
    }
  }

  /// The errors of an FFT engine.
  BoundRatios errors(Engine engine) const {
    const Index n_q = A.rows(), n_k = B.rows(), r = A.cols(), p = U.cols(), num_lags = n_q + n_k - 1;
    Workspace workspace;
    const Team team(workspace);
    const MatrixView<T> a = m_x.A, b = m_x.B, u = m_x.U, g = m_x.G;
    const double* e = m_x.e.size() > 0 ? m_x.e.data() : nullptr;
    const toeplitz::Factors<T> x{a, b, u, Slots{n_q}, Slots{n_k}, e};
    const toeplitz::Product<T> product(engine, m_c.view(), {n_q, n_k, r, p}, team);
    toeplitz::Gradients<T> d({n_q, n_k, r, p});
    Vector<T> of_keys(n_k), of_lags(num_lags);
    const toeplitz::GradientSizes<T> sums{m_x.sizes.data(), of_keys.data(), of_lags.data()};
    if (m_x.all_positive) {
      product.gradients(x, g, {d.dA, d.dB, d.dU, d.dc}, sums, team);
    } else {
      toeplitz::Gradients<T> none({n_q, n_k, 1, 1});
      const Matrix<T> a1 = m_x.A.rowwise().norm(), b1 = m_x.B.rowwise().norm(), u1 = Matrix<T>::Ones(n_k, 1),
                      g1 = Matrix<T>::Zero(n_q, 1);
      const MatrixView<T> a2 = a1, b2 = b1, u2 = u1, g2 = g1;
      product.gradients(x, g, {d.dA, d.dB, d.dU, d.dc}, {}, team);
      product.gradients({a2, b2, u2, Slots{n_q}, Slots{n_k}, e}, g2, {none.dA, none.dB, none.dU, none.dc}, sums, team);
    }
    const Vector<T> values = m_x.U.rowwise().norm();
    Vector<double> bounds(n_k), key_bounds(n_k), lag_bounds(num_lags), lag_size_bounds(num_lags);
    product.gradient_error_bounds(
        x, {m_x.sizes.data(), values.data(), of_lags.data()},
        {bounds.data(), key_bounds.data(), lag_bounds.data(), lag_size_bounds.data(), num_lags, !m_x.all_positive},
        team);

    BoundRatios found;
    const double growth = direct_growth<T>(r + p, std::max(n_q, n_k));
    const auto add = [&](std::string what, Index at, W error, W own, double its_bound) {
      const double beyond = static_cast<double>(error - growth * own);
      if (!(beyond <= found.most * its_bound)) {
        found.most = its_bound > 0 ? beyond / its_bound : std::numeric_limits<double>::infinity();
        found.where = what + " " + std::to_string(at);
      }
      if (its_bound > 0) found.all.push_back(static_cast<double>(error) / its_bound);
    };
    for (Index j = 0; j < n_k; ++j) {
      for (Index k = 0; k < p; ++k)
        add("dU of key", j, std::abs(d.dU(j, k) - dU(j, k)), dU_size(j, k), k + 1 < p ? bounds[j] : key_bounds[j]);
      // of sum_r |B_jr dB_jr|, or of |B_j| |dB_j|
      W magnitude = 0, off = 0, own = 0, square = 0, off_square = 0, own_square = 0;
      for (Index k = 0; k + 1 < p; ++k) magnitude += std::abs(U(j, k));
      for (Index f = 0; f < r; ++f) {
        const W beta = std::abs(B(j, f)), difference = std::abs(d.dB(j, f) - dB(j, f));
        off += beta * difference, own += beta * dB_size(j, f);
        square += beta * beta, off_square += difference * difference, own_square += dB_size(j, f) * dB_size(j, f);
      }
      if (!m_x.all_positive) off = std::sqrt(off_square * square), own = std::sqrt(own_square * square);
      add("dB of key", j, off, own, static_cast<double>(magnitude) * bounds[j] + key_bounds[j]);
      add("size of key", j, std::abs(static_cast<W>(of_keys[j]) - keys[j]), keys[j], key_bounds[j]);
    }
    const LagRange support = m_c.support();
    for (Index lag = support.first; lag <= support.last; ++lag) {
      const Index l = lag + n_q - 1;
      add("dc of lag", lag, std::abs(static_cast<W>(d.dc[l]) - dc[l]), dc_size[l], lag_bounds[l]);
      add("size of lag", lag, std::abs(static_cast<W>(of_lags[l]) - lags[l]), lags[l], lag_size_bounds[l]);
    }
    return found;
  }

 private:
  static Matrix<W> wide(const Matrix<T>& X) { return X.template cast<W>(); }
  // X_i.Z_j, and the sum of the magnitudes of its terms
  static std::pair<W, W> dot(const Matrix<W>& X, Index i, const Matrix<W>& Z, Index j) {
    W sum = 0, size = 0;
    for (Index l = 0; l < X.cols(); ++l) sum += X(i, l) * Z(j, l), size += std::abs(X(i, l) * Z(j, l));
    return {sum, size};
  }

  const ErrorBoundCase<T>& m_x;
  const LagWeights<T>& m_c;
  Matrix<W> A, B, G, U;

 public:
  Matrix<W> dA, dB, dB_size, dU, dU_size;
  Vector<W> dc, dc_size, keys, lags;  // keys and lags: the sums of sizes
};

}  // namespace nprf::test
