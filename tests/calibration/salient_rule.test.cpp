// SPDX-License-Identifier: MIT
#include "nprf/calibration/salient_rule.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_salient_rule {

TEMPLATE_TEST_CASE("a rule has the mean and the covariance of the queries and a share of the keys", "[calibration]",
                   float, double) {
  using T = TestType;
  constexpr Index n = 90, d = 5;
  const Matrix<T> q = normal<T>(n, d, 1), k = normal<T>(60, d, 2);
  for (const Normalization normalization : {Normalization::none(), Normalization::unit(1.5)})
    for (const double share : {0.0, 0.1, 0.5, 1.0}) {
      const SalientRule rule = salient_rule<T>(q, k, normalization, share);
      const auto scaled = [&](const Matrix<T>& x, Index i) {
        const double norm = x.row(i).template cast<double>().norm();
        const double scale = normalization.is_unit() ? 1.5 / norm : std::pow(static_cast<double>(d), -0.25);
        return (x.row(i).template cast<double>() * scale).eval();
      };
      // over the queries, the mean of q.k is nu.k and its variance k S k
      Index above = 0;
      for (Index j = 0; j < k.rows(); ++j) {
        double mean = 0, variance = 0, by_rule = 0, quadratic = 0;
        for (Index i = 0; i < n; ++i) mean += scaled(q, i).dot(scaled(k, j)) / n;
        for (Index i = 0; i < n; ++i) variance += std::pow(scaled(q, i).dot(scaled(k, j)) - mean, 2) / n;
        for (Index a = 0; a < d; ++a) {
          by_rule += rule.mean[static_cast<std::size_t>(a)] * scaled(k, j)[a];
          for (Index b = 0; b < d; ++b)
            quadratic += rule.covariance[static_cast<std::size_t>(a * d + b)] * scaled(k, j)[a] * scaled(k, j)[b];
        }
        CHECK(std::abs(by_rule - mean) <= 1e-5);
        CHECK(std::abs(quadratic - variance) <= 1e-5);
        above += by_rule + quadratic / 2 > rule.threshold + 1e-5;
      }
      CHECK(above == std::lround(share * 60));
    }
}

TEST_CASE("what is no sample of a rule is refused", "[calibration]") {
  const Matrix<double> x = normal<double>(9, 3, 1), none(0, 3);
  const auto rule = [](const Matrix<double>& q, const Matrix<double>& k, double share) {
    return [=] { salient_rule<double>(q, k, Normalization::none(), share); };
  };
  check_invalid(rule(none, x, 0.1), {"sample", "got 0 and 9"});
  check_invalid(rule(x, x.leftCols(2), 0.1), {"keys", "expected 3", "got 2"});
  check_invalid(rule(x, x, -0.1), {"share", "expected 0 to 1", "got -0.1"});
  check_invalid(rule(x, x, 1.5), {"share", "got 1.5"});
  Matrix<double> bad = x;
  bad(2, 1) = std::numeric_limits<double>::infinity();
  check_invalid(rule(bad, x, 0.1), {"sample", "finite"});
}

}  // namespace nprf::test::calibration_salient_rule
