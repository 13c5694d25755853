// SPDX-License-Identifier: MIT
#include "nprf/attention/direct_row.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

using namespace nprf;
using namespace nprf::test;

TEST_CASE("a row alone is its formula, whatever the common scale of its weights", "[attention]") {
  const Index n_k = 9, r = 3, d_v = 2;
  const auto A = normal<double>(4, r, 1).cwiseAbs().eval(), B = normal<double>(n_k, r, 2).cwiseAbs().eval(),
             v = normal<double>(n_k, d_v, 3);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index position : {Index{0}, Index{4}, Index{20}})
      for (const double shift : {0.0, -5000.0}) {
        const LagBias<double> bias{-3, normal_vector<double>(7, 4).array() + shift, -0.5, 0.25};
        Eigen::RowVectorXd expected = Eigen::RowVectorXd::Zero(d_v);
        double D = 0;
        for (Index j = 0; j < (direction == Direction::causal ? std::min(position + 1, n_k) : n_k); ++j) {
          const double weight = A.row(2).dot(B.row(j)) * std::exp(bias[j - position] - shift);
          expected += weight * v.row(j);
          D += weight;
        }
        Matrix<double> y(1, d_v);
        const DirectRow<double> row(bias, position, direction, n_k);
        CHECK(row.forward(Matrix<double>(A), 2, Matrix<double>(B), v, y.row(0)) > 0);
        INFO("position " << position << " shift " << shift);
        // exponents of up to 5000 carry 5000 eps
        CHECK(worst_ratio(y, expected / D, 4 * (16 - shift) * epsilon<double>) <= 1);
      }
}
