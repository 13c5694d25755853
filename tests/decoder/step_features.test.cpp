// SPDX-License-Identifier: MIT
#include "nprf/decoder/step_features.hpp"

#include <cmath>

#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_step_features {

namespace {

constexpr Index n = 7, d = 13;

// the features of single rows are those of all rows together
template <class F>
void check(const F& map, const Normalization& normalization) {
  using T = typename F::Scalar;
  Matrix<T> x = normal<T>(n, d, 5);
  x.row(2).setZero();
  x.row(3) *= std::numeric_limits<T>::min();
  const Index r = map.output_dim();
  Matrix<T> queries(n, r), keys(n, r);
  Vector<T> scale(n), of_queries = Vector<T>::Zero(n), of_keys = of_queries;
  Workspace workspace;
  const Team team(workspace);
  const FeatureMapView<T> view(map);
  const Head<T> head{view, normalization, nullptr};
  const LiftedRows<T> rows = head.normalize(x, scale, team);
  if (view.has_log_factors()) {
    view.with_log_factors(rows.rows(), Head<T>::as_span(scale), queries, of_queries.data(), team);
    view.keys_with_log_factors(rows.rows(), Head<T>::as_span(scale), keys, of_keys.data(), team);
  } else {
    view.queries(rows.rows(), Head<T>::as_span(scale), queries, team);
    view.keys(rows.rows(), Head<T>::as_span(scale), keys, team);
  }
  const StepFeatures<T> one(view, normalization);
  Vector<T> normalized(d), phi(padded_to_lanes(r));
  // a product of one row may round differently than that of several
  const double tolerance = 50 * epsilon<T>;
  for (Index i = 0; i < n; ++i)
    for (const bool is_query : {true, false}) {
      phi.setOnes();
      const double log_factor = is_query ? one.query(x.row(i).data(), normalized.data(), phi.data(), workspace)
                                         : one.key(x.row(i).data(), normalized.data(), phi.data(), workspace);
      const Vector<T>& factors = is_query ? of_queries : of_keys;
      CHECK(std::abs(log_factor - factors[i]) <= tolerance * (1 + std::abs(factors[i])));
      const Vector<T> expected = (is_query ? queries : keys).row(i).transpose();
      CHECK(worst_ratio(phi.head(r), expected, tolerance * (1 + expected.cwiseAbs().maxCoeff())) <= 1);
      CHECK(phi.tail(phi.size() - r).isZero(0));
      const double norm = one.norm(normalized.data()), exact = normalized.template cast<double>().norm();
      CHECK((normalization.is_unit() ? norm == normalization.radius() : norm == Approx(exact)));
      if (normalization.is_unit()) CHECK((i == 2 ? exact == 0 : exact == Approx(norm).epsilon(10 * epsilon<T>)));
    }
}

template <class F>
void check(const F& map) {
  check(map, Normalization::unit(1.3));
  check(map, Normalization::none());
}

}  // namespace

TEST_CASE("step features: one row is as in a matrix", "[decoder]") {
  check(orf<double>(d, 20, 1));
  check(HyperbolicFeatures<float>({.input_dim = d, .num_features = 9}));
  check(trf<float>(d, 20, 1));
  check(EluFeatures<float>(d));
  const Matrix<float> q = normal<float>(60, d, 90), k = normal<float>(60, d, 91);
  check(Centred(TaylorFeatures<float>({.input_dim = d, .directions = 3}), balance<float>(q, k).constants));
}

TEST_CASE("step features: the same bits for random maps", "[decoder]") {
  using T = float;
  const auto map = orf<T>(d, 20, 1);
  const Matrix<T> x = normal<T>(n, d, 5);
  Vector<T> log_factors(n);
  const Matrix<T> all = map.queries(x, {}, &log_factors);
  const Normalization none = Normalization::none();
  Matrix<T> one(n, 20);
  Vector<T> scale = none.row_scale<T>(x, true);
  const Matrix<T> scaled = map.queries(x, {scale.data(), static_cast<std::size_t>(n)}, &log_factors);
  Vector<T> normalized(d), phi(padded_to_lanes(20));
  Workspace workspace;
  const FeatureMapView<T> view(map);
  for (Index i = 0; i < n; ++i) {
    CHECK(StepFeatures<T>(view, none).key(x.row(i).data(), normalized.data(), phi.data(), workspace) ==
          static_cast<double>(log_factors[i]));
    one.row(i) = phi.head(20).transpose();
  }
  CHECK(same_bits(one, scaled));
}

}  // namespace nprf::test::decoder_step_features
