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
/// linear in g. phi_at(x') must omit the same factors as phi at x.
///
/// The error of the differences is h^2 / 6 times a third derivative, plus eps / h: for h = 1e-5 it is well below 1e-6
/// of the largest entry.
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

  // a different factor for each row: powers of two, so that scaling is exact
  Vector<double> factor(x.rows());
  for (Index i = 0; i < factor.size(); ++i) factor[i] = std::ldexp(1.0, static_cast<int>(5 * i % 17) - 8);
  const Matrix<double> scaled = features.backward(x, phi, factor.asDiagonal() * g);
  const Matrix<double> expected = factor.asDiagonal() * dx;
  CHECK((scaled - expected).cwiseAbs().maxCoeff() <= 1e-14 * expected.cwiseAbs().maxCoeff());
}

/// A function that returns the query features at x' with the factors omitted at x instead of those omitted at x'.
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

/// The same for key features.
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

/// Checks that backward is linear in phi: a factor of a row of phi is a factor of the row of dx.
template <class F>
void check_backward_with_factors(const F& features, const Matrix<double>& x) {
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
