// SPDX-License-Identifier: MIT

#include "nprf/feature_map/tilt.hpp"

#include <cmath>
#include <limits>

#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/random_features.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_tilt {

namespace {

constexpr Index d = 4;

// queries around one mean and keys around another, so that x + y has directions of different size
Matrix<double> rows(double mean, std::uint64_t seed) {
  Matrix<double> x = 0.3 * normal<double>(50, d, seed);
  x.col(1).array() += mean;
  return x;
}

// the estimate of exp(x.y) by one draw of m rows
template <class F>
double estimate(const F& features, const Matrix<double>& x, const Matrix<double>& y) {
  Vector<double> g;
  double h = 0;
  const Matrix<double> a = features.queries(x, {}, &g), b = features.keys(y, {}, &h);
  return a.row(0).dot(b.row(0)) * std::exp(g[0] + h);
}

// mean and variance of estimates over draws, and the number of their standard errors from what is expected
struct Moments {
  double mean, variance, mean_error, variance_error;
};
template <class F>
Moments moments(const Matrix<double>& x, const Matrix<double>& y, FeatureOptions options, Index draws) {
  double sum = 0, square = 0, fourth = 0;
  Vector<double> all(draws);
  for (Index s = 0; s < draws; ++s) {
    options.seed = static_cast<std::uint64_t>(s);
    all[s] = estimate(F(options), x, y);
  }
  const double count = static_cast<double>(draws);
  sum = all.mean();
  const Vector<double> squares = (all.array() - sum).square();
  square = squares.mean();
  fourth = (squares.array() - square).square().mean();
  return {sum, square, std::sqrt(square / count), std::sqrt(fourth / count)};
}

double variance_of_independent_rows(const Tilt& tilt, const Matrix<double>& x, const Matrix<double>& y, double m) {
  const Vector<double> u = tilt.axes.transpose() * (x + y).row(0).transpose();
  double product = 1;
  for (Index l = 0; l < d; ++l) {
    const double a = tilt.a[l];
    product *= (1 - 4 * a) / std::sqrt(1 - 8 * a) * std::exp(u[l] * u[l] / (1 - 8 * a));
  }
  const double K = std::exp(x.row(0).dot(y.row(0)));
  return K * K * (product - 1) / m;
}

}  // namespace

TEST_CASE("tilted features are unbiased, with the variance of the formula", "[feature_map]") {
  const Matrix<double> q = rows(0.9, 1), k = rows(0.5, 2);
  const Matrix<double> x = q.row(0), y = k.row(0);
  const double exact = std::exp(x.row(0).dot(y.row(0)));
  for (const Tilt& tilt : {oprf_tilt(d, 2.5), sderf_tilt<double>(q, k)}) {
    FeatureOptions options{.input_dim = d, .num_features = 3, .projection = Projection::gaussian, .tilt = tilt};
    const Moments independent = moments<PositiveFeatures<double>>(x, y, options, 20000);
    CHECK(std::abs(independent.mean - exact) <= 5 * independent.mean_error);
    CHECK(std::abs(independent.variance - variance_of_independent_rows(tilt, x, y, 3)) <=
          5 * independent.variance_error);
    for (const Projection projection : {Projection::orthogonal, Projection::simplex}) {
      options.projection = projection;
      const Moments coupled = moments<PositiveFeatures<double>>(x, y, options, 20000);
      CHECK(std::abs(coupled.mean - exact) <= 5 * coupled.mean_error);
      const Moments both = moments<HyperbolicFeatures<double>>(x, y, options, 5000);
      CHECK(std::abs(both.mean - exact) <= 5 * both.mean_error);
    }
  }
}

TEST_CASE("the best tilt has the least mean logarithm of the variance", "[feature_map]") {
  for (const double l : {0.01, 0.3, 2.0, 50.0}) {
    // log(prod (1 - 4 a) / sqrt(1 - 8 a) exp(u^2 / (1 - 8 a))) on average over u^2 = l
    const auto mean_log = [l](double a) { return std::log(1 - 4 * a) - std::log(1 - 8 * a) / 2 + l / (1 - 8 * a); };
    const double best = best_tilt(l);
    CHECK(best < 0);
    for (const double other : {best - 0.01, best + 0.01, 0.0}) CHECK(mean_log(best) < mean_log(other));
  }
  CHECK(best_tilt(0) == 0);
}

TEST_CASE("the variances are in the order of what is known of the pairs", "[feature_map]") {
  const Matrix<double> q = rows(0.9, 3), k = rows(0.5, 4);
  const double mean_square = [&] {
    double sum = 0;
    for (Index i = 0; i < q.rows(); ++i)
      for (Index j = 0; j < k.rows(); ++j) sum += (q.row(i) + k.row(j)).squaredNorm();
    return sum / static_cast<double>(q.rows() * k.rows());
  }();
  const Tilt none{Matrix<double>::Identity(d, d), Vector<double>::Zero(d)}, one = oprf_tilt(d, mean_square),
                                                                            all = sderf_tilt<double>(q, k);
  double variances[3] = {0, 0, 0};
  for (Index i = 0; i < q.rows(); ++i)
    for (int at = 0; at < 3; ++at)
      variances[at] += std::log(variance_of_independent_rows(at == 0   ? none
                                                             : at == 1 ? one
                                                                       : all,
                                                             q.row(i), k.row(i), 1));
  CHECK(variances[2] < variances[1]);
  CHECK(variances[1] < variances[0]);
}

TEST_CASE("a tilt of zeros changes nothing, and gradients have it", "[feature_map]") {
  const FeatureOptions options{.input_dim = d, .num_features = 9};
  FeatureOptions zero = options;
  zero.tilt = {Matrix<double>::Identity(d, d), Vector<double>::Zero(d)};
  const Matrix<double> x = normal<double>(20, d, 5);
  CHECK(PositiveFeatures<double>(options).offsets().size() == 0);
  CHECK(same_bits(PositiveFeatures<double>(options).queries(x), PositiveFeatures<double>(zero).queries(x)));

  const Matrix<double> q = rows(0.9, 6), k = rows(0.5, 7), dphi = normal<double>(20, 18, 8);
  zero.tilt = sderf_tilt<double>(q, k);
  const HyperbolicFeatures<double> features(zero);
  const Matrix<double> phi = features.keys(x), dx = features.backward(x, phi, dphi);
  double log_factor = 0;
  features.keys(x, {}, &log_factor);
  constexpr double h = 1e-6;
  for (const Index i : {0, 7, 19})
    for (Index l = 0; l < d; ++l) {
      const auto loss = [&](double by) {
        Matrix<double> at = x;
        at(i, l) += by;
        double factor = 0;
        const Matrix<double> moved = features.keys(at, {}, &factor);
        return moved.cwiseProduct(dphi).sum() * std::exp(factor - log_factor);
      };
      CHECK(std::abs((loss(h) - loss(-h)) / (2 * h) - dx(i, l)) <= 1e-7 * dx.cwiseAbs().maxCoeff());
    }
  CHECK(same_bits(redrawn(features, 5).queries(x), [&] {
    FeatureOptions other = zero;
    other.seed = 5;
    return HyperbolicFeatures<double>(other).queries(x);
  }()));
}

TEST_CASE("tilts that do not fit are refused", "[feature_map]") {
  const auto with = [](const Tilt& tilt) {
    PositiveFeatures<float>({.input_dim = d, .num_features = 3, .tilt = tilt});
  };
  const Matrix<double> unit = Matrix<double>::Identity(d, d);
  check_invalid([&] { with({Matrix<double>::Identity(3, 3), Vector<double>::Zero(3)}); }, {"tilt", "4 x 4", "3 x 3"});
  check_invalid([&] { with({unit, Vector<double>::Zero(3)}); }, {"tilt", "4 constants", "got 3"});
  check_invalid([&] { with({unit, Vector<double>::Constant(d, 0.25)}); }, {"tilt", "below 1/4"});
  check_invalid([&] { oprf_tilt(0, 1); }, {"d", "got 0"});
  check_invalid([&] { oprf_tilt(3, -1); }, {"mean_square", "got -1"});
  const Matrix<double> x = normal<double>(3, d, 9);
  check_invalid([&] { sderf_tilt<double>(x, Matrix<double>(0, d)); }, {"at least 1 row", "got 3 and 0"});
  check_invalid([&] { sderf_tilt<double>(x, normal<double>(3, 5, 1)); }, {"keys", "4 columns", "got 5"});
  check_invalid([] { TrigonometricFeatures<float>({.input_dim = d, .num_features = 3, .tilt = oprf_tilt(d, 1)}); },
                {"tilt", "trigonometric"});
}

}  // namespace nprf::test::feature_map_tilt
