// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nprf/core/types.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test {

/// Compares backward(x, phi(x), g) with central differences of L(x) = sum_ir g_ir phi_ir(x), and checks that it is
/// linear in g and takes a factor of phi's rows along. phi(x') must keep the factors that were taken out at x.
///
/// The differences are off by h^2 / 6 of a third derivative, and by eps / h: 1e-6 of the largest entry is ample for h =
/// 1e-5.
template <class F, class Phi>
void check_backward(const F& features, const Matrix<double>& x, Phi&& phi_at) {
  constexpr double h = 1e-5;
  const Matrix<double> phi = phi_at(x);                                    // (n,r)
  const Matrix<double> g = normal<double>(phi.rows(), phi.cols(), 12345);  // (n,r)
  const Matrix<double> dx = features.backward(x, phi, g);                  // (n,d)
  REQUIRE(dx.rows() == x.rows());
  REQUIRE(dx.cols() == x.cols());

  double worst = 0;
  for (Index i = 0; i < x.rows(); ++i)
    for (Index c = 0; c < x.cols(); ++c) {
      Matrix<double> above = x, below = x;
      above(i, c) += h;
      below(i, c) -= h;
      const double difference = (phi_at(above) - phi_at(below)).cwiseProduct(g).sum() / (above(i, c) - below(i, c));
      worst = std::max(worst, std::abs(difference - dx(i, c)));
    }
  const double largest = dx.cwiseAbs().maxCoeff();
  CHECK(largest > 0);
  CHECK(worst <= 1e-6 * largest);

  // a column of factors that varies by row, powers of two and so without rounding
  Vector<double> factor(x.rows());
  for (Index i = 0; i < factor.size(); ++i) factor[i] = std::ldexp(1.0, static_cast<int>(5 * i % 17) - 8);
  const Matrix<double> scaled = features.backward(x, phi, factor.asDiagonal() * g);
  const Matrix<double> expected = factor.asDiagonal() * dx;
  CHECK((scaled - expected).cwiseAbs().maxCoeff() <= 1e-14 * expected.cwiseAbs().maxCoeff());
}

/// phi of queries at x', times what was taken out at x' over what was taken out at x.
template <class F>
auto queries_like(const F& features, const Matrix<double>& x) {
  Vector<double> log_x;
  features.queries(x, {}, &log_x);
  return [=, &features](const Matrix<double>& at) {
    Vector<double> log_at;
    const Matrix<double> phi = features.queries(at, {}, &log_at);
    return Matrix<double>((log_at - log_x).array().exp().matrix().asDiagonal() * phi);
  };
}

/// The same of keys.
template <class F>
auto keys_like(const F& features, const Matrix<double>& x) {
  double log_x;
  features.keys(x, {}, &log_x);
  return [=, &features](const Matrix<double>& at) {
    double log_at;
    const Matrix<double> phi = features.keys(at, {}, &log_at);
    return Matrix<double>(std::exp(log_at - log_x) * phi);
  };
}

/// backward's formula is linear in phi: a factor that was taken out of a row goes straight to the row of dx.
template <class F>
void check_backward_takes_factors(const F& features, const Matrix<double>& x) {
  const Matrix<double> phi = features.queries(x);
  const Matrix<double> g = normal<double>(phi.rows(), phi.cols(), 54321);
  const Matrix<double> dx = features.backward(x, phi, g);
  Vector<double> factor(x.rows());
  for (Index i = 0; i < factor.size(); ++i) factor[i] = std::ldexp(1.0, static_cast<int>(7 * i % 41) - 20);
  const Matrix<double> scaled = features.backward(x, factor.asDiagonal() * phi, g);
  for (Index i = 0; i < x.rows(); ++i)
    CHECK((scaled.row(i) / factor[i] - dx.row(i)).cwiseAbs().maxCoeff() <= 1e-14 * dx.row(i).cwiseAbs().maxCoeff());
}

}  // namespace nprf::test
