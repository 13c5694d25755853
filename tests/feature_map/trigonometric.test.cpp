// SPDX-License-Identifier: MIT
#include "nprf/feature_map/trigonometric.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "feature_map/statistics.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_trigonometric {

static_assert(FeatureMap<TrigonometricFeatures<float>> && FeatureMap<TrigonometricFeatures<double>>);
static_assert(!is_positive<TrigonometricFeatures<float>>());
static_assert(estimates_exp<TrigonometricFeatures<float>>());

namespace {

template <class T>
TrigonometricFeatures<T> make(Index d, Index m, Projection projection = Projection::orthogonal,
                              std::uint64_t seed = 3) {
  return TrigonometricFeatures<T>({.input_dim = d, .num_features = m, .projection = projection, .seed = seed});
}

// phi(x) by the formula:  exp(|x|^2/2) / sqrt(m) [sin(w.x)..., cos(w.x)...]   (n,2m)
template <class T>
Matrix<double> formula(const TrigonometricFeatures<T>& features, const Matrix<double>& x) {
  const Matrix<double> w = features.projection().template cast<double>();  // (m,d)
  const Index m = w.rows();
  Matrix<double> phi(x.rows(), 2 * m);
  for (Index i = 0; i < x.rows(); ++i)
    for (Index f = 0; f < m; ++f) {
      double product = 0, square = 0;
      for (Index c = 0; c < x.cols(); ++c) {
        product += w(f, c) * x(i, c);
        square += x(i, c) * x(i, c);
      }
      const double factor = std::exp(square / 2) / std::sqrt(static_cast<double>(m));
      phi(i, f) = factor * std::sin(product);
      phi(i, m + f) = factor * std::cos(product);
    }
  return phi;
}

// the error of sin and cos is the rounding error of w.x, which is below 20 here; that of the factor, of its exponent
template <class T>
double tolerance(Index d) {
  return epsilon<T> * 20 * (static_cast<double>(d) / 4 + 4);
}

}  // namespace

TEMPLATE_TEST_CASE("TRF: queries and keys times their omitted factors equal the formula", "[feature_map]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index d : {1, 5, 64})
    for (const Index m : {1, 7, 16, 70})
      for (const Index n : {1, 3, 127, 128, 129, 300}) {
        if (n > 3 && d * m > 64) continue;
        const TrigonometricFeatures<T> features = make<T>(d, m);
        const Matrix<T> x = normal<T>(n, d, 5) / static_cast<T>(std::sqrt(static_cast<double>(d)));
        const Matrix<double> expected = formula(features, x.template cast<double>());
        REQUIRE(features.output_dim() == 2 * m);

        Vector<T> log_q;
        T log_k = 0;
        const Matrix<double> q = features.queries(x, {}, &log_q).template cast<double>();
        const Matrix<double> k = features.keys(x, {}, &log_k).template cast<double>();
        REQUIRE(log_q.size() == n);
        const Vector<double> factor = log_q.template cast<double>().array().exp();
        // errors are relative to the row's factor exp(|x|^2/2) / sqrt(m)
        Vector<double> size(n);
        for (Index i = 0; i < n; ++i) size[i] = expected.row(i).norm() * tolerance<T>(d) / std::sqrt(double(m));
        const Matrix<double> allowed = size.replicate(1, 2 * m);
        INFO("d " << d << " m " << m << " n " << n);
        CHECK(worst_ratio(factor.asDiagonal() * q, expected, allowed) <= 1);
        CHECK(worst_ratio(std::exp(static_cast<double>(log_k)) * k, expected, allowed) <= 1);

        CHECK(features.queries(x).template cast<double>() == q);
        CHECK(features.keys(x).template cast<double>() == k);
      }
}

TEMPLATE_TEST_CASE("TRF: sin^2 + cos^2 is 1 for the features of each query and of the longest key", "[feature_map]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index m = 20;
  const TrigonometricFeatures<T> features = make<T>(6, m);
  Matrix<T> x = normal<T>(150, 6, 8);
  x.row(77) *= T(10) / x.row(77).norm();
  const Matrix<T> q = features.queries(x), k = features.keys(x);
  const Matrix<T> q_circle = q.leftCols(m).array().square() + q.rightCols(m).array().square();
  const Matrix<T> k_circle = k.leftCols(m).array().square() + k.rightCols(m).array().square();
  const double close = 8 * epsilon<T>;
  CHECK(worst_ratio(q_circle, Matrix<T>::Ones(150, m), close) <= 1);
  CHECK(worst_ratio(k_circle.row(77), Matrix<T>::Ones(1, m), close) <= 1);
  CHECK(k_circle.maxCoeff() <= T(1 + close));
}

TEMPLATE_TEST_CASE("TRF: rows of any norm have finite features", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index d = 8;
  const TrigonometricFeatures<T> features = make<T>(d, 16);
  Matrix<T> x = normal<T>(5, d, 8);
  x.row(1) *= T(1e4) / x.row(1).norm();
  x.row(2) *= T(-5e3) / x.row(2).norm();
  x.row(3).setZero();
  Vector<T> log_q;
  T log_k = 0;
  const Matrix<T> q = features.queries(x, {}, &log_q), k = features.keys(x, {}, &log_k);
  CHECK(q.allFinite());
  CHECK(k.allFinite());
  CHECK(log_q.allFinite());
  CHECK(std::isfinite(log_k));
  CHECK(q.cwiseAbs().maxCoeff() <= 1);
  CHECK(k.cwiseAbs().maxCoeff() <= 1);
  CHECK(k.row(1).cwiseAbs().maxCoeff() > T(0.5));
  CHECK(k.row(2).cwiseAbs().maxCoeff() < std::numeric_limits<T>::min());
}

TEMPLATE_TEST_CASE("TRF: a non-finite row does not affect the other rows", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const TrigonometricFeatures<T> features = make<T>(4, 9);
  const Matrix<T> x = normal<T>(3, 4, 8);
  const Matrix<T> expected = formula(features, x.template cast<double>()).template cast<T>();
  for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
    for (const Index wrong : {0, 1, 2}) {
      Matrix<T> y = x;
      y(wrong, 2) = bad;
      T log_k = 0;
      const Matrix<T> q = features.queries(y), k = features.keys(y, {}, &log_k);
      for (Index i = 0; i < 3; ++i) {
        CHECK(q.row(i).allFinite() == (i != wrong));
        CHECK(k.row(i).allFinite() == (i != wrong));
        const double close = tolerance<T>(4) * static_cast<double>(expected.row(i).norm());
        if (i != wrong) CHECK(worst_ratio(std::exp(log_k) * k.row(i), expected.row(i), close) <= 1);
      }
      // relative to the longest key that is not NaN
      if (std::isnan(bad)) CHECK(k.row((wrong + 1) % 3).norm() <= T(3.001));
      if (std::isnan(bad)) CHECK(std::max(k.row((wrong + 1) % 3).norm(), k.row((wrong + 2) % 3).norm()) >= T(2.999));
    }
}

TEST_CASE("TRF: Gaussian rows have the variance of the formulas", "[feature_map][monte_carlo]") {
  // divided by exp(x.y)^2:  exp(|x|^2 + |y|^2 - 2 x.y) (1 - exp(-|x-y|^2))^2 / 2m
  const Index d = 4, m = 8;
  const std::vector<Matrix<double>> v = two_vectors<double>(d, 1.2);
  for (const Matrix<double>& y : {v[1], Matrix<double>(-v[1])}) {
    const Matrix<double>& x = v[0];
    const double product = x.row(0).dot(y.row(0)), squares = x.squaredNorm() + y.squaredNorm();
    const double noise = std::pow(1 - std::exp(-(x - y).squaredNorm()), 2) / (2 * static_cast<double>(m));
    const double expected = std::exp(2 * product) * std::exp(squares - 2 * product) * noise;
    const Statistics trf(
        estimates([&](std::uint64_t seed) { return make<double>(d, m, Projection::gaussian, seed); }, x, y, 20000));
    CHECK(trf.variance_sigmas(expected) <= five_sigma);
    CHECK(trf.variance_error <= 0.1 * trf.variance);
  }
}

}  // namespace nprf::test::feature_map_trigonometric
