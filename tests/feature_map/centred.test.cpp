// SPDX-License-Identifier: MIT
#include "nprf/feature_map/centred.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "feature_map/check_backward.hpp"
#include "feature_map/statistics.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_centred {

static_assert(FeatureMap<Centred<PositiveFeatures<float>>> && FeatureMap<Centred<TaylorFeatures<double>>>);
static_assert(is_positive<Centred<HyperbolicFeatures<float>>>() && !is_positive<Centred<TaylorFeatures<float>>>());

namespace {

template <class T>
Centring<T> constants(Index d) {
  const Matrix<double> q = 0.5 * normal<double>(40, d, 71) + 0.3 * Matrix<double>::Ones(40, d),
                       k = 0.4 * normal<double>(40, d, 72) - 0.2 * Matrix<double>::Ones(40, d);
  return balance<T>(q.cast<T>(), k.cast<T>()).constants;
}

// phi(q_i).phi(k_j), with the factors that queries and keys omit
template <class F>
Matrix<double> kernel_of(const F& features, const Matrix<typename F::Scalar>& q, const Matrix<typename F::Scalar>& k) {
  return kernel(features, q, k);
}

}  // namespace

TEST_CASE("centred: complete features of both sides have the product exp(q.k)", "[feature_map]") {
  // in two dimensions, with all rows close to the means, the second order is as good as exact
  const Index d = 2;
  const Centring<double> c = constants<double>(d);
  const Centred<TaylorFeatures<double>> features(TaylorFeatures<double>({.input_dim = d, .directions = d}), c);
  const double near = 1e-3;
  const Matrix<double> q = (near * normal<double>(5, d, 1)).rowwise() + c.query_mean.transpose(),
                       k = (near * normal<double>(6, d, 2)).rowwise() + c.key_mean.transpose();
  const Matrix<double> K = kernel_of(features, q, k);
  for (Index i = 0; i < 5; ++i)
    for (Index j = 0; j < 6; ++j) {
      const double exact = std::exp(q.row(i).dot(k.row(j)));
      CHECK(std::abs(K(i, j) - exact) <= 1e-13 * exact);  // |z_q.z_k|^3 / 6, and rounding
    }
}

TEST_CASE("centred: the mean of phi(q).phi(k) over seeds is exp(q.k)", "[feature_map][monte_carlo]") {
  const Index d = 5, m = 4;
  const Centring<double> c = constants<double>(d);
  const Matrix<double> q = 0.4 * normal<double>(1, d, 1), k = 0.4 * normal<double>(1, d, 2);
  std::vector<double> sample, uncentred;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const PositiveFeatures<double> features({.input_dim = d, .num_features = m, .seed = seed});
    sample.push_back(kernel_of(Centred(features, c), q, k)(0, 0));
  }
  CHECK(Statistics(sample).mean_sigmas(std::exp(q.row(0).dot(k.row(0)))) <= five_sigma);
}

TEST_CASE("centred: with means 0 and axes 1 the features are those of the map", "[feature_map]") {
  const Index d = 6;
  const PositiveFeatures<float> features({.input_dim = d, .num_features = 9});
  const Matrix<float> one = Matrix<float>::Identity(d, d);
  const Centred<PositiveFeatures<float>> centred(features, {Vector<float>::Zero(d), Vector<float>::Zero(d), one, one});
  const Matrix<float> x = normal<float>(30, d, 3);
  CHECK(worst_ratio(centred.queries(x), features.queries(x), 16 * epsilon<float>) <= 1);
  CHECK(worst_ratio(centred.keys(x), features.keys(x), 16 * epsilon<float> * 30) <= 1);
}

TEST_CASE("centred: backward of queries and of keys is the derivative of their features", "[feature_map]") {
  const Index d = 5;
  const auto check = [&](const auto& features) {
    const Matrix<double> x = 0.7 * normal<double>(4, d, 21);
    check_backward(features, x, queries_like(features, x));
    check_backward_with_factors(features, x);
    // the same of keys
    struct Keys {
      const decltype(features)& map;
      Matrix<double> queries(const Matrix<double>& at, RowScale<double> = {},
                             Vector<double>* log_factor = nullptr) const {
        Workspace workspace;
        Matrix<double> phi(at.rows(), map.output_dim());
        Vector<double> own(at.rows());
        map.keys_by_row(at, {}, phi, Team(workspace), own.data());
        if (log_factor) *log_factor = own;
        return phi;
      }
      Matrix<double> backward(const Matrix<double>& at, const Matrix<double>& phi, const Matrix<double>& dphi) const {
        Workspace workspace;
        Matrix<double> dx(at.rows(), at.cols());
        map.backward_keys(at, phi, dphi, dx, Team(workspace));
        return dx;
      }
    };
    const Keys keys{features};
    check_backward(keys, x, queries_like(keys, x));
    check_backward_with_factors(keys, x);
  };
  check(Centred(PositiveFeatures<double>({.input_dim = d, .num_features = 7}), constants<double>(d)));
  check(Centred(HyperbolicFeatures<double>({.input_dim = d, .num_features = 7}), constants<double>(d)));
  check(Centred(TaylorFeatures<double>({.input_dim = d, .directions = 3}), constants<double>(d)));
}

TEST_CASE("centred: constants of other sizes are rejected", "[feature_map]") {
  const TaylorFeatures<float> features({.input_dim = 3});
  const Centring<float> right = constants<float>(3);
  const auto with = [&](auto&& change) {
    Centring<float> wrong = right;
    change(wrong);
    return [=] { Centred<TaylorFeatures<float>>(features, wrong); };
  };
  check_invalid(with([](auto& x) { x.query_mean = Vector<float>::Zero(2); }),
                {"query_mean: expected 3 scalars", "got 2"});
  check_invalid(with([](auto& x) { x.key_mean = Vector<float>::Zero(4); }), {"key_mean: expected 3 scalars", "got 4"});
  check_invalid(with([](auto& x) { x.query_axes = Matrix<float>::Zero(3, 2); }), {"query_axes: expected 3 x 3"});
  check_invalid(with([](auto& x) { x.key_axes = Matrix<float>::Zero(2, 3); }), {"key_axes: expected 3 x 3"});
  check_invalid(with([](auto& x) { x.key_axes(0, 0) = std::numeric_limits<float>::infinity(); }),
                {"constants: expected finite scalars"});
}

}  // namespace nprf::test::feature_map_centred
