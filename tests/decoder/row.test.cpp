// SPDX-License-Identifier: MIT
#include "nprf/decoder/row.hpp"

#include <cmath>
#include <limits>
#include <string_view>

#include "decoder/tokens.hpp"
#include "nprf/decoder/head_state.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_row {

namespace {

using T = float;
constexpr Index d = 4, d_v = 3;

// the report of the last row of tokens with these keys and values
template <class F, class P>
Report last_row(const F& map, const P& position, AttentionOptions options, const Matrix<T>& q, const Matrix<T>& k,
                const Matrix<T>& v, Vector<T>& y) {
  options.direction = Direction::causal;
  StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), options, 0);
  model.reserve(k.rows());
  HeadState<T> state(model, d_v);
  Workspace scratch;
  state.reserve(model, k.rows());
  for (Index j = 0; j < k.rows(); ++j) append(state, model, k.row(j).data(), v.row(j).data(), scratch);
  Report report;
  y.setOnes(d_v);
  const FeatureRows<T> query = model.features({}, {q.row(q.rows() - 1).data(), 1}, scratch);
  state.attend(model, {query, 0, 1, y.data(), 0}, report, scratch);
  return report;
}

const RelativePosition<T> table(random_table<T>(50, 3));

}  // namespace

TEST_CASE("row: of equal values", "[decoder]") {
  const Matrix<T> q = normal<T>(40, d, 1), k = normal<T>(40, d, 2), v = Matrix<T>::Constant(40, d_v, T(0.7));
  Vector<T> y;
  for (const Index near : {0, 1, 30, 100}) {
    const Report report = last_row(orf<T>(d, 8, 1), table, {.near = near}, q, k, v, y);
    CHECK(worst_ratio(y, Vector<T>::Constant(d_v, T(0.7)), 0.7 * report.error_bound) <= 1);
    CHECK(report.error_bound > 0);
    CHECK(report.error_bound < 1e-4);
    CHECK(report.failing_rows + report.repaired_rows + report.empty_rows + report.indefinite_rows == 0);
  }
}

TEST_CASE("row: of a query that attends to no key", "[decoder]") {
  const Matrix<T> q = normal<T>(3, d, 1), k = normal<T>(3, d, 2), v = normal<T>(3, d_v, 3);
  Vector<T> window = Vector<T>::Zero(2 * 5 + 1);
  window.segment(1, 5).setConstant(-std::numeric_limits<T>::infinity());  // all but keys 5 and more tokens before
  Vector<T> y;
  const Report report = last_row(orf<T>(d, 8, 1), RelativePosition<T>(window), {}, q, k, v, y);
  CHECK(report.empty_rows == 1);
  CHECK(y.isZero(0));
}

TEST_CASE("row: signed features have a condition", "[decoder]") {
  const Matrix<T> q = normal<T>(40, d, 1), k = normal<T>(40, d, 2), v = normal<T>(40, d_v, 3);
  Vector<T> y;
  const double positive = last_row(orf<T>(d, 40, 1), table, {}, q, k, v, y).error_bound,
               both = last_row(trf<T>(d, 20, 1), table, {}, q, k, v, y).error_bound;
  CHECK(both > 2 * positive);
  CHECK(both < 1e-2);
}

TEST_CASE("row: terms that cancel give a row of softmax while all keys are stored", "[decoder]") {
  const TaylorFeatures<T> series({.input_dim = d});
  Matrix<T> q = normal<T>(40, d, 1), k = -q.row(39).replicate(40, 1), v = normal<T>(40, d_v, 3);
  Vector<T> y;
  Report report = last_row(series, table, {}, q, k, v, y);
  CHECK(report.repaired_rows == 1);
  CHECK(report.failing_rows == 0);
  // all keys are equal
  double D = 0;
  Vector<double> N = Vector<double>::Zero(d_v);
  for (Index j = 0; j < 40; ++j) {
    const double weight = std::exp(table.bias()[j - 39]);
    D += weight, N += weight * v.row(j).transpose().cast<double>();
  }
  CHECK(worst_ratio(y, N / D, report.error_bound * static_cast<double>(v.cwiseAbs().maxCoeff())) <= 1);
  report = last_row(series, NoPosition<T>(), {}, q, k, v, y);
  CHECK(report.repaired_rows == 0);
  CHECK(report.failing_rows == 1);
}

TEST_CASE("row: denominators that underflow fail", "[decoder]") {
  // features of the query and of the keys that peak far apart
  Matrix<T> w(2, d);
  w.setZero();
  w(0, 0) = 1, w(1, 0) = -1;
  Matrix<T> q = Matrix<T>::Zero(5, d), k = q, v = normal<T>(5, d_v, 3);
  q.col(0).setConstant(120), k.col(0).setConstant(-120);
  Vector<T> y;
  const Report report = last_row(PositiveFeatures<T>(w), table, {.normalization = Normalization::none()}, q, k, v, y);
  CHECK(report.failing_rows == 1);
  CHECK(report.error_bound == std::numeric_limits<double>::infinity());
  CHECK(y.array().isNaN().all());
}

}  // namespace nprf::test::decoder_row
