// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_recompute.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/workspace.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_fallback_double_row {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

struct Row {
  Matrix<double> a = normal<double>(1, 3, 1).cwiseAbs(), B = normal<double>(9, 3, 2).cwiseAbs(),
                 v = normal<double>(9, 2, 3);
};

template <class Bias>
VectorMap<double> biases(const Row& x, const Bias& b, Workspace& workspace) {
  auto all = workspace.vector<double>(x.B.rows());
  for (Index j = 0; j < all.size(); ++j) all[j] = b(j);
  return all;
}

template <class Bias>
double forward(const Row& x, const Bias& b, Matrix<double>& y) {
  Workspace workspace;
  y.resize(1, x.v.cols());
  return DoubleRow<double>(row_of(x.a, 0), x.B, x.v, biases(x, b, workspace)).forward(writable_row(y, 0), workspace);
}

}  // namespace

TEST_CASE("a row in double equals the formula, with biases of any common offset", "[attention]") {
  const Row x;
  const Index n_k = x.B.rows();
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index position : {Index{0}, Index{4}, Index{20}})
      for (const double shift : {0.0, -5000.0}) {
        const LagBias<double> bias{-3, normal_vector<double>(7, 4).array() + shift, -0.5, 0.25};
        const auto b = [&](Index j) {
          return direction == Direction::causal && j > position ? minus_infinity : bias[j - position];
        };
        Eigen::RowVectorXd expected = Eigen::RowVectorXd::Zero(2);
        double D = 0;
        for (Index j = 0; j < (direction == Direction::causal ? std::min(position + 1, n_k) : n_k); ++j) {
          const double weight = x.a.row(0).dot(x.B.row(j)) * std::exp(bias[j - position] - shift);
          expected += weight * x.v.row(j);
          D += weight;
        }
        Matrix<double> y;
        CHECK(forward(x, b, y) > 0);
        INFO("position " << position << " shift " << shift);
        // the errors of exponents of up to 5000 are 5000 eps
        CHECK(worst_ratio(y, expected / D, 4 * (16 - shift) * epsilon<double>) <= 1);
      }
}

TEST_CASE("a row in double does not depend on keys that it does not attend to", "[attention]") {
  Row x;
  const auto b = [](Index j) { return j % 3 == 1 ? minus_infinity : 0.1 * static_cast<double>(j); };
  Matrix<double> y, changed;
  const double D = forward(x, b, y);
  for (const Index j : {1, 4, 7}) {
    x.B.row(j).setConstant(std::numeric_limits<double>::quiet_NaN());
    x.v.row(j).setConstant(std::numeric_limits<double>::infinity());
  }
  CHECK(forward(x, b, changed) == D);
  CHECK(same_bits(changed, y));
}

TEST_CASE("gradients of a row in double are central differences, and are added", "[attention]") {
  const Row x;
  const Matrix<double> dy = normal<double>(1, 2, 5);
  for (const double shift : {0.0, -5000.0}) {
    const Matrix<double> table = normal<double>(9, 1, 6);
    const auto loss = [&](const Row& row, const Matrix<double>& t) {
      Matrix<double> y;
      forward(
          row, [&](Index j) { return j == 2 ? minus_infinity : t(j, 0) + shift; }, y);
      return y.cwiseProduct(dy).sum();
    };
    const auto b = [&](Index j) { return j == 2 ? minus_infinity : table(j, 0) + shift; };
    Matrix<double> y;
    forward(x, b, y);
    Matrix<double> da = Matrix<double>::Ones(1, 3), dB = Matrix<double>::Ones(9, 3), dU = Matrix<double>::Ones(9, 3);
    Matrix<double> db = Matrix<double>::Constant(9, 1, 7);
    Workspace workspace;
    const double factor = 4;  // of all gradients but da
    DoubleRow<double>(row_of(x.a, 0), x.B, x.v, biases(x, b, workspace))
        .backward(row_of(y, 0), row_of(dy, 0), {factor, writable_row(da, 0), dB, dU, db.data()}, workspace);
    // 5000 + h with h = 1e-5 has a relative rounding error of 1e-7 in h
    const double tolerance = shift == 0 ? 1e-6 : 1e-4;
    Row moved = x;
    CHECK(difference_error(x.a, (da.array() - 1).matrix(), [&](const auto& a) {
            moved.a = a;
            return loss(moved, table);
          }) <= tolerance);
    moved = x;
    CHECK(difference_error(x.B, ((dB.array() - 1) / factor).matrix(), [&](const auto& B) {
            moved.B = B;
            return loss(moved, table);
          }) <= tolerance);
    moved = x;
    CHECK(difference_error(x.v, ((dU.leftCols(2).array() - 1) / factor).matrix(), [&](const auto& v) {
            moved.v = v;
            return loss(moved, table);
          }) <= tolerance);
    CHECK(difference_error(table, db / factor, [&](const auto& t) { return loss(x, t); }) <= tolerance);
    CHECK(db(2, 0) == 0);
    CHECK(dU.col(2).isOnes(0));  // the column of ones has no gradient
  }
}

}  // namespace nprf::test::attention_fallback_double_row
