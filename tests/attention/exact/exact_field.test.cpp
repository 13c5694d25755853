// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/exact_field.hpp"

#include <cmath>
#include <optional>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_exact_field {

namespace {

constexpr Index n = 29, d = 4, d_v = 3, r = 5, near = 4;

}  // namespace

// the quotient of sums in any units: far sums are given, as are their log-scales, of very different sizes
TEST_CASE("near sums are added to far sums in one unit", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 1);
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> prepared(RelativePosition<double>(random_table<double>(n, 2)), {.near = near},
                                          {n, n, r, d_v + 1}, 0, Pass::forward, team);
  const LagProblem<double>& problem = prepared.problem();
  const Placement keys = prepared.keys({}, n, workspace);
  const Matrix<double> A = normal<double>(n, r, 3).cwiseAbs(), B = normal<double>(n, r, 4).cwiseAbs();
  const toeplitz::BorderedProduct<double> product = prepared.products().direct_product(r, d_v, team);
  const toeplitz::Factors<double> factors{A, B, x.v, prepared.queries(), keys};
  Vector<double> sizes = x.v.cwiseAbs().rowwise().maxCoeff();
  RowErrorBound<double> errors(prepared, product, factors, sizes.data(), true, team);
  Matrix<double> far_A = A, N(n, d_v);
  Vector<double> D(n), log_scales(n);
  product.contract(factors, N, team, D.data());
  for (Index i = 0; i < n; ++i) log_scales[i] = 40.0 * static_cast<double>(i % 5 - 2);
  const Matrix<double> far_N = N;
  const Vector<double> far_D = D, far_scales = log_scales;
  const MatrixView<double> q = x.q, k = x.k;
  ExactField<double>(near_pairs(problem, workspace), keys, q, k, team)
      .add(x.v, {far_A, N, D.data(), log_scales.data()}, errors);
  for (Index i = 0; i < n; ++i) {
    long double denominator = far_D[i];
    Vector<long double> numerator = far_N.row(i).transpose().cast<long double>();
    for (Index j = std::max<Index>(i - near + 1, 0); j < std::min(n, i + near); ++j) {
      const long double weight = std::exp(static_cast<long double>(
          x.q.row(i).dot(x.k.row(j)) + problem.bias_between(i, j) - problem.weight_bias - far_scales[i]));
      denominator += weight;
      numerator += weight * x.v.row(j).transpose().cast<long double>();
    }
    const Matrix<double> expected = (numerator / denominator).transpose().cast<double>();
    CHECK((N.row(i) / D[i] - expected).norm() <= 256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
    // the same sums, in the unit that is returned
    const double unit = std::exp(log_scales[i] - far_scales[i]);
    CHECK(std::abs(D[i] * unit - static_cast<double>(denominator)) <= 1e-13 * static_cast<double>(denominator));
    CHECK((far_A.row(i) * unit - A.row(i)).norm() <= 1e-13 * A.row(i).norm());
  }
}

}  // namespace nprf::test::attention_exact_exact_field
