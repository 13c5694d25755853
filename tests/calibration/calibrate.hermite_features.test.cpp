// SPDX-License-Identifier: MIT
#include "nprf/calibration/calibrate_definition.hpp"

#include <cmath>
#include <numbers>

#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_hermite_features {

namespace {

// means 0, axes 1
Balance<double> axes(const Vector<double>& variances) {
  const Index d = variances.size();
  const Matrix<double> one = Matrix<double>::Identity(d, d);
  return {{Vector<double>::Zero(d), Vector<double>::Zero(d), one, one}, variances};
}

// phi(q_i).phi(k_j) with all factors
Matrix<double> products(const CalibratedFeatures<double>& map, const Matrix<double>& q, const Matrix<double>& k) {
  Vector<double> log_q;
  double log_k;
  const Matrix<double> A = map.queries(q, {}, &log_q), B = map.keys(k, {}, &log_k);
  return (log_q.array() + log_k).exp().matrix().asDiagonal() * (A * B.transpose());
}

double rho_of(double lambda) { return 2 * lambda / (1 + std::sqrt(1 + 4 * lambda * lambda)); }

}  // namespace

TEST_CASE("Hermite: of Gaussian rows the squared error relative to the factors is that of Mehler's series",
          "[calibration]") {
  // in one dimension sum_n (1 - rho^2) rho^2n over the orders that are left out: rho^(2 orders)
  const Index points = 161;
  const double step = 0.2;
  Matrix<double> x(points, 1);
  Vector<double> density(points);
  for (Index i = 0; i < points; ++i) {
    x(i, 0) = step * static_cast<double>(i - points / 2);
    density[i] = step * std::exp(-x(i, 0) * x(i, 0) / 2) / std::sqrt(2 * std::numbers::pi);
  }
  for (const double lambda : {0.1, 0.5, 2.0}) {
    const double rho = rho_of(lambda);
    const Matrix<double> a = std::sqrt(lambda) * x;
    for (const auto& [first, second] : {std::pair<Index, Index>{0, 0}, {1, 0}, {1, 1}}) {
      const Matrix<double> K =
          products(hermite_features(axes(Vector<double>::Constant(1, lambda)), first, second), a, a);
      double sum = 0;
      for (Index i = 0; i < points; ++i)
        for (Index j = 0; j < points; ++j) {
          const double factor = std::exp(rho * (a(i, 0) * a(i, 0) + a(j, 0) * a(j, 0)) / 2),
                       error = (std::exp(a(i, 0) * a(j, 0)) - K(i, j)) / factor;
          sum += density[i] * density[j] * error * error;
        }
      const double expected = std::pow(rho, 2.0 * static_cast<double>(1 + first + second));
      INFO("lambda " << lambda << ", orders " << first + second);
      CHECK(std::abs(sum - expected) <= 1e-10);  // the trapezium rule, to |x| = 16
    }
  }
}

TEST_CASE("Hermite: products of several coordinates are those of Mehler's series", "[calibration]") {
  const Vector<double> lambda = (Vector<double>(3) << 0.9, 0.4, 0.1).finished();
  const Matrix<double> a = normal<double>(6, 3, 1), b = normal<double>(7, 3, 2);
  const Matrix<double> K = products(hermite_features(axes(lambda), 3, 2), a, b);
  for (Index i = 0; i < 6; ++i)
    for (Index j = 0; j < 7; ++j) {
      double log_factor = 0, first = 0, diagonal = 0, t[3];
      for (Index l = 0; l < 3; ++l) {
        const double rho = rho_of(lambda[l]), x = a(i, l) / std::sqrt(lambda[l]), y = b(j, l) / std::sqrt(lambda[l]);
        log_factor += std::log(1 - rho * rho) / 2 + rho * (a(i, l) * a(i, l) + b(j, l) * b(j, l)) / 2;
        first += t[l] = rho * x * y;
        if (l < 2) diagonal += rho * rho / 2 * (x * x - 1) * (y * y - 1);
      }
      const double expected = std::exp(log_factor) * (1 + first + diagonal + t[0] * t[1]);
      CHECK(std::abs(K(i, j) - expected) <= 1e-13 * std::exp(log_factor) * (1 + std::abs(first) + std::abs(diagonal)));
    }
}

TEST_CASE("Hermite: of small variances the features are those of the Taylor series", "[calibration]") {
  const Index d = 4;
  const Matrix<double> x = normal<double>(9, d, 1);
  const CalibratedFeatures<double> hermite = hermite_features(axes(Vector<double>::Zero(d)), d, 2);
  const TaylorFeatures<double> taylor({.input_dim = d, .directions = 2});
  CHECK(worst_ratio(hermite.queries(x), taylor.queries(x), 1e-14 * x.squaredNorm()) <= 1);
}

TEST_CASE("Hermite: numbers of features that do not fit are rejected", "[calibration]") {
  const Balance<double> balance = axes(Vector<double>::Ones(3));
  check_invalid([&] { hermite_features(balance, 4, 0); }, {"first: expected 0 to 3", "got 4"});
  check_invalid([&] { hermite_features(balance, 2, 3); }, {"directions: expected 0 to 2, got 3"});
  check_invalid([&] { hermite_features(balance, 2, -1); }, {"directions: expected 0 to 2, got -1"});
}

}  // namespace nprf::test::calibration_hermite_features
