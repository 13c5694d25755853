// SPDX-License-Identifier: MIT
#include "nprf/feature_map/positive.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "feature_map/statistics.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_positive {

static_assert(FeatureMap<PositiveFeatures<float>> && FeatureMap<PositiveFeatures<double>>);
static_assert(FeatureMap<HyperbolicFeatures<float>> && FeatureMap<HyperbolicFeatures<double>>);
static_assert(is_positive<PositiveFeatures<float>>() && is_positive<HyperbolicFeatures<double>>());
static_assert(estimates_exp<PositiveFeatures<float>>() && estimates_exp<HyperbolicFeatures<double>>());

namespace {

template <class F>
constexpr bool is_hyperbolic = std::is_same_v<F, HyperbolicFeatures<typename F::Scalar>>;

template <class F>
F make(Index d, Index m, Projection projection = Projection::orthogonal, std::uint64_t seed = 3) {
  return F({.input_dim = d, .num_features = m, .projection = projection, .seed = seed});
}

// log phi(x) by the formula:  s w.x - |x|^2/2 - log(r)/2   (n,r)
template <class F>
Matrix<double> log_features(const F& features, const Matrix<double>& x) {
  const Matrix<double> w = features.projection().template cast<double>();  // (m,d)
  const Index m = w.rows(), r = is_hyperbolic<F> ? 2 * m : m;
  Matrix<double> log_phi(x.rows(), r);
  for (Index i = 0; i < x.rows(); ++i)
    for (Index f = 0; f < r; ++f) {
      double product = 0, square = 0;
      for (Index c = 0; c < x.cols(); ++c) {
        product += w(f % m, c) * x(i, c);
        square += x(i, c) * x(i, c);
      }
      log_phi(i, f) = (f < m ? product : -product) - square / 2 - std::log(static_cast<double>(r)) / 2;
    }
  return log_phi;
}

// The rounding error in T of an exponent: two sums of d terms, their difference and a maximum. The exponents are below
// 40 here.
template <class T>
double tolerance(Index d) {
  return epsilon<T> * 40 * (static_cast<double>(d) / 4 + 4);
}

// 0F1(; b; t) = sum_k t^k / (b (b+1) ... (b+k-1) k!)
double hypergeometric_0f1(double b, double t) {
  double sum = 0, term = 1;
  for (int k = 0; k < 100; ++k) {
    sum += term;
    term *= t / ((b + k) * (k + 1));
  }
  return sum;
}

}  // namespace

#if NPRF_TEST_SANITIZED
#define NPRF_ALL_MAPS PositiveFeatures<float>, HyperbolicFeatures<float>
#else
#define NPRF_ALL_MAPS \
  PositiveFeatures<float>, PositiveFeatures<double>, HyperbolicFeatures<float>, HyperbolicFeatures<double>
#endif

TEMPLATE_TEST_CASE("positive: queries and keys times their omitted factors equal the formula", "[feature_map]",
                   NPRF_ALL_MAPS) {
  using T = typename TestType::Scalar;
  for (const Index d : {1, 5, 64})
    for (const Index m : {1, 7, 16, 70})
      for (const Index n : {1, 3, 127, 128, 129, 300}) {
        if (n > 3 && d * m > 64) continue;
        const TestType features = make<TestType>(d, m);
        const Matrix<T> x = normal<T>(n, d, 5) / static_cast<T>(std::sqrt(static_cast<double>(d)));
        const Matrix<double> expected = log_features(features, x.template cast<double>());
        REQUIRE(features.output_dim() == expected.cols());

        Vector<T> log_q;
        T log_k = 0;
        const Matrix<double> q = features.queries(x, {}, &log_q).template cast<double>();
        const Matrix<double> k = features.keys(x, {}, &log_k).template cast<double>();
        REQUIRE(log_q.size() == n);
        Matrix<double> log_phi_q = q.array().log(), log_phi_k = k.array().log() + static_cast<double>(log_k);
        log_phi_q.colwise() += log_q.template cast<double>();
        INFO("d " << d << " m " << m << " n " << n);
        CHECK(worst_ratio(log_phi_q, expected, tolerance<T>(d)) <= 1);
        CHECK(worst_ratio(log_phi_k, expected, tolerance<T>(d)) <= 1);

        // requesting the factor does not change the features
        CHECK(features.queries(x).template cast<double>() == q);
        CHECK(features.keys(x).template cast<double>() == k);
      }
}

TEMPLATE_TEST_CASE("positive: rows of any norm have finite features", "[feature_map]", NPRF_ALL_MAPS) {
  using T = typename TestType::Scalar;
  const Index d = 8;
  const TestType features = make<TestType>(d, 16);
  Matrix<T> x = normal<T>(5, d, 8);
  x.row(1) *= T(1e4) / x.row(1).norm();
  x.row(2) *= T(-1e4) / x.row(2).norm();
  x.row(3).setZero();
  Vector<T> log_q;
  T log_k = 0;
  const Matrix<T> q = features.queries(x, {}, &log_q), k = features.keys(x, {}, &log_k);
  CHECK(q.allFinite());
  CHECK(k.allFinite());
  CHECK(log_q.allFinite());
  CHECK(std::isfinite(log_k));
  for (Index i = 0; i < 5; ++i) CHECK(std::abs(q.row(i).maxCoeff() - T(1)) <= std::numeric_limits<T>::epsilon());
  CHECK(q.row(3) == Matrix<T>::Ones(1, q.cols()));             // phi(0) has equal features
  CHECK(k.row(1).maxCoeff() < std::numeric_limits<T>::min());  // exp(-1e8/2) relative to the others
  CHECK(k.row(3).minCoeff() > 0);

  // if all rows have that norm, the largest feature is still 1
  CHECK(std::abs(features.keys(x.middleRows(1, 2)).maxCoeff() - T(1)) <= std::numeric_limits<T>::epsilon());
}

TEMPLATE_TEST_CASE("positive: a NaN in one row does not affect the other rows", "[feature_map]", NPRF_ALL_MAPS) {
  using T = typename TestType::Scalar;
  const TestType features = make<TestType>(4, 9);
  Matrix<T> x = normal<T>(3, 4, 8);
  const Matrix<T> good = x.topRows(1);
  x(1, 2) = std::numeric_limits<T>::quiet_NaN();
  const Matrix<T> q = features.queries(x), k = features.keys(x);
  CHECK(q.row(0).allFinite());
  CHECK(q.row(2).allFinite());
  CHECK(k.row(0).allFinite());
  CHECK(k.row(2).allFinite());
  CHECK_FALSE(q.row(1).allFinite());
  CHECK_FALSE(k.row(1).allFinite());
  CHECK(std::abs(std::max(k.row(0).maxCoeff(), k.row(2).maxCoeff()) - T(1)) <= std::numeric_limits<T>::epsilon());
}

TEST_CASE("positive features with orthogonal rows are unbiased in opposite directions", "[feature_map][monte_carlo]") {
  // At d = 64 a Q without the signs of R's diagonal gives 2.34 and 3.10 instead of e = 2.718.
  const Index d = 64;
  Matrix<double> x(2, d);
  x << Matrix<double>::Constant(1, d, 0.125), Matrix<double>::Constant(1, d, -0.125);  // |x| = 1
  std::vector<double> plus, minus;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Matrix<double> k = kernel(make<PositiveFeatures<double>>(d, 10 * d, Projection::orthogonal, seed), x, x);
    plus.push_back(k(0, 0));
    minus.push_back(k(1, 1));
  }
  for (const Statistics& estimate : {Statistics(plus), Statistics(minus)}) {
    CHECK(estimate.mean_sigmas(std::exp(1.0)) <= five_sigma);
    CHECK(estimate.mean_error <= 0.38 / (five_sigma + 2));  // small enough to distinguish 2.34 and 3.10 from e
  }
}

TEST_CASE("the mean estimate with rows on the sphere is the hypergeometric function of its formula",
          "[feature_map][monte_carlo]") {
  for (const Index d : {2, 8, 32})
    for (const double norm : {0.5, 1.0}) {
      const Matrix<double> x = two_vectors<double>(d, norm)[0];
      const Matrix<double> y = two_vectors<double>(d, norm)[1] / 2 + x / 2;
      const double half = static_cast<double>(d) / 2, z = (x + y).squaredNorm();
      const double expected =
          std::exp(-(x.squaredNorm() + y.squaredNorm()) / 2) * hypergeometric_0f1(half, half * z / 2);
      for (const Projection projection : {Projection::sphere, Projection::sphere_simplex}) {
        const auto estimate = [&]<class F>(std::type_identity<F>, std::uint64_t seeds) {
          return Statistics(
              estimates([&](std::uint64_t seed) { return make<F>(d, 50, projection, seed); }, x, y, seeds));
        };
        const Statistics prf = estimate(std::type_identity<PositiveFeatures<double>>(), 3000),
                         hyperbolic = estimate(std::type_identity<HyperbolicFeatures<double>>(), 1000);
        INFO("d " << d << " norm " << norm << " projection " << static_cast<int>(projection));
        CHECK(prf.mean_sigmas(expected) <= five_sigma);
        CHECK(hyperbolic.mean_sigmas(expected) <= five_sigma);
        // biased; checked where the bias is larger than the standard error
        if (norm == 1 && d <= 8) CHECK(prf.mean_sigmas(exp_xy(x, y)) > five_sigma);
      }
    }
}

TEST_CASE("positive features with Gaussian rows have the variance of the formulas", "[feature_map][monte_carlo]") {
  // divided by exp(x.y)^2, with z = x + y:  PRF (exp(|z|^2) - 1) / m,  hyperbolic (cosh(|z|^2) - 1) / m
  const Index d = 4, m = 8;
  const std::vector<Matrix<double>> v = two_vectors<double>(d, 0.5);
  for (const Matrix<double>& y : {v[0], v[1], Matrix<double>(-v[1])}) {
    const Matrix<double>& x = v[0];
    const double square = (x + y).squaredNorm(), unit = exp_xy(x, y) * exp_xy(x, y) / static_cast<double>(m);
    const Statistics prf(
        estimates([&](std::uint64_t seed) { return make<PositiveFeatures<double>>(d, m, Projection::gaussian, seed); },
                  x, y, 20000));
    const Statistics hyperbolic(estimates(
        [&](std::uint64_t seed) { return make<HyperbolicFeatures<double>>(d, m, Projection::gaussian, seed); }, x, y,
        20000));
    INFO("|x+y|^2 " << square);
    CHECK(prf.variance_sigmas(unit * (std::exp(square) - 1)) <= five_sigma);
    CHECK(hyperbolic.variance_sigmas(unit * (std::cosh(square) - 1)) <= five_sigma);
    CHECK(prf.variance_error <= 0.1 * prf.variance);
    CHECK(hyperbolic.variance_error <= 0.1 * hyperbolic.variance);
  }
}

TEST_CASE("positive features of one block have the variance of its coupling", "[feature_map][monte_carlo]") {
  // Two rows of a block have independent chi(d) norms a and b and the cosine c; with s = |w_1 + w_2|^2 = a^2 + b^2 +
  // 2abc,
  //     Var = K^2 [exp(rho) - 1 + (m - 1) (exp(-rho) E[0F1(; d/2; rho s / 4)] - 1)] / m,  rho = |x + y|^2
  const Index d = 6;
  const auto moment = [](int k) {  // E[a^k]
    const double half = static_cast<double>(d) / 2;
    return std::exp(k * std::log(2.0) / 2 + std::lgamma(half + k / 2.0) - std::lgamma(half));
  };
  const auto moment_of_s = [&](int k, double c) {
    double sum = 0;
    for (int p = 0; p <= k; ++p)
      for (int q = 0; p + q <= k; ++q) {
        const int r = k - p - q;
        const double ways = std::tgamma(k + 1.0) / (std::tgamma(p + 1.0) * std::tgamma(q + 1.0) * std::tgamma(r + 1.0));
        sum += ways * moment(2 * p + r) * moment(2 * q + r) * std::pow(2 * c, r);
      }
    return sum;
  };
  const std::vector<Matrix<double>> v = two_vectors<double>(d, 0.4);
  for (const Projection projection : {Projection::orthogonal, Projection::simplex})
    for (const Index m : {2, 4, 6})
      for (const Matrix<double>& y : {v[0], v[1]}) {
        const double rho = (v[0] + y).squaredNorm();
        const double cosine = projection == Projection::simplex ? -1 / static_cast<double>(m - 1) : 0;
        double mean_0f1 = 0, term = 1;
        for (int k = 0; k < 25; ++k) {  // terms fall like (rho / 2)^k / k!, and rho < 1
          mean_0f1 += term * moment_of_s(k, cosine);
          term *= rho / 4 / ((static_cast<double>(d) / 2 + k) * (k + 1));
        }
        const double K = exp_xy(v[0], y), rows = static_cast<double>(m);
        const double expected = K * K * (std::exp(rho) - 1 + (rows - 1) * (std::exp(-rho) * mean_0f1 - 1)) / rows;
        const Statistics prf(
            estimates([&](std::uint64_t seed) { return make<PositiveFeatures<double>>(d, m, projection, seed); }, v[0],
                      y, 20000));
        INFO("projection " << static_cast<int>(projection) << " m " << m << " rho " << rho);
        CHECK(prf.variance_sigmas(expected) <= five_sigma);
        CHECK(prf.variance_error <= 0.1 * prf.variance);
      }
}

TEST_CASE("orthogonal rows have less variance than Gaussian ones", "[feature_map][monte_carlo]") {
  const Index d = 8;
  const Matrix<double> x = two_vectors<double>(d, 0.5)[0];
  const auto statistics = [&](Projection projection) {
    return Statistics(estimates(
        [&](std::uint64_t seed) { return make<HyperbolicFeatures<double>>(d, d, projection, seed); }, x, x, 4000));
  };
  const Statistics gaussian = statistics(Projection::gaussian), orthogonal = statistics(Projection::orthogonal);
  const double error = std::hypot(gaussian.variance_error, orthogonal.variance_error);
  CHECK(gaussian.variance - orthogonal.variance >= five_sigma * error);
}

}  // namespace nprf::test::feature_map_positive
