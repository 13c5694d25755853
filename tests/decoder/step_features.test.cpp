// SPDX-License-Identifier: MIT
#include "nprf/decoder/step_features.hpp"

#include <cmath>
#include <limits>

#include "decoder/tokens.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_step_features {

namespace {

constexpr Index n = 7, d = 13;

template <Real T>
Matrix<T> row_of(const T* x, Index size) {
  return Eigen::Map<const Matrix<T>>(x, 1, size);
}

// The features of rows are those of the map, and have the same bits in any company.
template <class F>
void check(const F& map, const Normalization& normalization) {
  using T = typename F::Scalar;
  // the map scales a sum, or the sum is one of scaled terms
  const double tolerance = 50 * epsilon<T>;
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
  const StepFeatures<T> features(view, normalization);
  const FeatureRows<T> all = features({x.data(), n, d}, {x.data(), n, d}, workspace);  // the keys, then the queries
  for (Index i = 0; i < n; ++i)
    for (const bool is_query : {true, false}) {
      const FeatureRow<T> row = all(is_query ? n + i : i);
      const Vector<T>& factors = is_query ? of_queries : of_keys;
      CHECK(std::abs(row.log_factor - static_cast<double>(factors[i])) <= tolerance * (1 + std::abs(factors[i])));
      const Matrix<T> expected = (is_query ? queries : keys).row(i), padded = row_of(row.phi, padded_to_lanes(r)),
                      phi = padded.leftCols(r), normalized = row_of(row.normalized, d);
      CHECK(worst_ratio(phi, expected, tolerance * (1 + expected.cwiseAbs().maxCoeff())) <= 1);
      CHECK(padded.rightCols(padded.size() - r).isZero(0));
      const double norm = features.norm(row.normalized), exact = normalized.template cast<double>().norm();
      CHECK((normalization.is_unit() ? norm == normalization.radius() : norm == Approx(exact)));
      if (normalization.is_unit()) CHECK((i == 2 ? exact == 0 : exact == Approx(norm).epsilon(10 * epsilon<T>)));

      const TokenRows<T> one{x.row(i).data(), 1}, none;
      const FeatureRow<T> alone = features(is_query ? none : one, is_query ? one : none, workspace)(0);
      CHECK(alone.log_factor == row.log_factor);
      CHECK(same_bits(phi, row_of(alone.phi, r)));
      CHECK(same_bits(normalized, row_of(alone.normalized, d)));
    }
}

template <class F>
void check(const F& map) {
  check(map, Normalization::unit(1.3));
  check(map, Normalization::none());
}

}  // namespace

TEST_CASE("step features: rows are those of the map, with the same bits in any company", "[decoder]") {
  check(orf<float>(d, 20, 1));
  check(trf<float>(d, 20, 1));
  check(Centred(orf<float>(d, 20, 1), centring<float>(d)));
  check(Centred(TaylorFeatures<float>({.input_dim = d, .directions = 3}), centring<float>(d)));
  check(EluFeatures<float>(d));
}

TEST_CASE("step features: rows of the heads of successive tokens", "[decoder]") {
  const TaylorFeatures<float> map({.input_dim = 2});
  const Matrix<float> x = normal<float>(12, 2, 5);  // (tokens,heads) rows, of which two tokens and two heads are used
  const FeatureMapView<float> view(map);
  const Normalization normalization = Normalization::none();
  const StepFeatures<float> features(view, normalization);
  Workspace workspace;
  const FeatureRows<float> rows = features({x.data(), 1}, {x.data() + 6, 2, 8, 2, 2}, workspace);
  const float scale = static_cast<float>(std::pow(2.0, -0.25));
  for (Index i = 0; const Index from : {0, 3, 4, 7, 8}) {
    for (Index l = 0; l < 2; ++l) CHECK(rows(i).phi[1 + l] == scale * x(from, l));
    ++i;
  }
}

}  // namespace nprf::test::decoder_step_features
