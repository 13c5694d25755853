// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/exact_pairs.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_exact_pairs {

TEST_CASE("the difference of rows from exact softmax is that of the formula", "[attention]") {
  constexpr Index n = 30, d = 4, d_v = 3;
  Tokens<double> x = random_tokens<double>(n, n, d, d_v, 1);
  x.k.row(n - 1).setConstant(std::numeric_limits<double>::quiet_NaN());  // no row before the last attends to it
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> prepared(RelativePosition<double>(random_table<double>(n, 2)),
                                          {.direction = Direction::causal}, {n, n, 4, d_v + 1}, 0, Pass::forward, team);
  const LagProblem<double>& problem = prepared.problem();
  const Placement keys = prepared.keys({}, n, workspace);
  const ExactPairs<double> pairs(problem, keys, x.q, x.k, x.v, team);
  const Matrix<double> y = normal<double>(n, d_v, 3);
  const std::vector<Index> rows{0, 3, 11, n - 2};
  double difference = 0, size = 0;
  for (const Index i : rows) {
    Vector<double> weights = Vector<double>::Zero(n);
    for (Index j = 0; j <= i; ++j) weights[j] = std::exp(x.q.row(i).dot(x.k.row(j)) + problem.bias_between(i, j));
    const Matrix<double> exact = weights.transpose() * x.v / weights.sum();
    difference += (y.row(i) - exact).squaredNorm(), size += exact.squaredNorm();
  }
  const SoftmaxDifference got = pairs.difference(rows, y);
  CHECK(got.rows == 4);
  CHECK(std::abs(got.difference - difference) <= 256 * epsilon<double> * difference);
  CHECK(std::abs(got.size - size) <= 256 * epsilon<double> * size);
}

}  // namespace nprf::test::attention_exact_exact_pairs
