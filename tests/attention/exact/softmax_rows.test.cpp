// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/softmax_rows.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_softmax_rows {

namespace {

constexpr Index n_q = 31, n_k = 37, d = 5, d_v = 3;

// one row of softmax, and the logarithm of its sum with biases relative to the largest
struct ExactRow {
  Vector<double> weights;  // (n_k), with sum 1
  double log_scale;
};

ExactRow exact_row(const LagProblem<double>& problem, const Tokens<double>& x, Index i) {
  Vector<double> b(n_k);
  for (Index j = 0; j < n_k; ++j) b[j] = problem.bias_between(i, j);
  b.array() -= b.maxCoeff();
  const Vector<double> weights = (x.k * x.q.row(i).transpose() + b).array().exp();
  return {weights / weights.sum(), std::log(weights.sum())};
}

}  // namespace

TEST_CASE("softmax rows and their gradients are those of the formula", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n_q, n_k, d, d_v, 1);
  Matrix<double> U(n_k, d_v + 1), G = Matrix<double>::Zero(n_q, d_v + 1);
  U << x.v, Matrix<double>::Ones(n_k, 1);
  const Matrix<double> dy = normal<double>(n_q, d_v, 9);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    Workspace workspace;
    const Team team(workspace);
    const PreparedPosition<double> prepared(RelativePosition<double>(random_table<double>(40, 2)),
                                            {.direction = direction}, {n_q, n_k, 4, d_v + 1}, 2, Pass::backward, team);
    const LagProblem<double>& problem = prepared.problem();
    const std::vector<Index> rows{0, 3, 4, 17, 30};
    const MatrixView<double> q = x.q, k = x.k;
    const Placement keys = prepared.keys({}, n_k, workspace);
    const SoftmaxRows<double> softmax(rows, problem, keys, q, k, team);
    std::vector<double> log_scales(n_q, 0);
    std::vector<int> exponents(n_q, 0), seen(n_q, 0);
    softmax.forward(x.v, [&](Index i, std::span<const double> y, double log_scale) {
      const ExactRow expected = exact_row(problem, x, i);
      const Vector<double> exact = x.v.transpose() * expected.weights;
      CHECK((Eigen::Map<const Vector<double>>(y.data(), d_v) - exact).norm() <=
            256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
      CHECK(std::abs(log_scale - expected.log_scale) <= 256 * epsilon<double> * (1 + std::abs(log_scale)));
      const auto at = static_cast<std::size_t>(i);
      log_scales[at] = log_scale;
      exponents[at] = static_cast<int>(i) - 10;
      ++seen[at];
      G.row(i) << dy.row(i), -dy.row(i).dot(exact);
    });
    for (Index i = 0; i < n_q; ++i)
      CHECK(seen[static_cast<std::size_t>(i)] == (std::ranges::count(rows, i) > 0 ? 1 : 0));

    Matrix<double> dq = Matrix<double>::Ones(n_q, d), dk = Matrix<double>::Zero(n_k, d),
                   dU = Matrix<double>::Zero(n_k, d_v + 1);
    std::vector<double> db(static_cast<std::size_t>(problem.lags.size()), 0);
    softmax.backward(U, G, log_scales.data(), exponents.data(), {dq, dk, dU, {db, {}}});
    Matrix<double> want_dq = Matrix<double>::Ones(n_q, d), want_dk = Matrix<double>::Zero(n_k, d),
                   want_dU = Matrix<double>::Zero(n_k, d_v + 1);
    std::vector<double> want_db(db.size(), 0);
    for (const Index i : rows) {
      const Vector<double> p = exact_row(problem, x, i).weights;
      const double factor = std::ldexp(1.0, exponents[static_cast<std::size_t>(i)]);
      for (Index j = 0; j < n_k; ++j) {
        const double ds = factor * p[j] * G.row(i).dot(U.row(j));
        want_dq.row(i) += ds / factor * x.k.row(j);  // queries do not get the factor
        want_dk.row(j) += ds * x.q.row(i);
        want_dU.row(j) += factor * p[j] * G.row(i);
        want_db[static_cast<std::size_t>(j - i - problem.lags.first)] += ds;
      }
    }
    // sums of 31 terms of each lag and key, whose weights have an error of a few eps times their exponents
    const double tolerance = 1024 * epsilon<double>;
    CHECK((dq - want_dq).norm() <= tolerance * want_dq.norm());
    CHECK((dk - want_dk).norm() <= tolerance * want_dk.norm());
    CHECK((dU - want_dU).norm() <= tolerance * want_dU.norm());
    double most = 0, difference = 0;
    for (std::size_t l = 0; l < db.size(); ++l) {
      most = std::max(most, std::abs(want_db[l]));
      difference = std::max(difference, std::abs(db[l] - want_db[l]));
    }
    CHECK(difference <= tolerance * most);
  }
}

}  // namespace nprf::test::attention_exact_softmax_rows
