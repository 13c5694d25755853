// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_error_bound.hpp"

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fallback_row_error_bound {

TEMPLATE_TEST_CASE("the error of sums grows with the number of terms", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const double u = epsilon<T> / 2;
  CHECK(error_of_sums<T>(1, 1) >= 3 * u);
  CHECK(error_of_sums<T>(1, 1) < 10 * u);
  double before = 0;
  for (const Index n : {1, 10, 100, 1000, 100000}) {
    CHECK(error_of_sums<T>(32, n) > before);
    before = error_of_sums<T>(32, n);
  }
  CHECK(error_of_sums<T>(64, 100) > error_of_sums<T>(32, 100));
}

TEST_CASE("the rounding error of biases is negligible in float", "[attention]") {
  CHECK(error_of_weights<float>(50) == 0);
  CHECK(error_of_weights<double>(50) == 50 * epsilon<double> / 2);
  CHECK(error_of_weights<double>(1e5) == error_of_weights<double>(1e4));
}

TEMPLATE_TEST_CASE("features of both signs: the bound allows for their cancellation", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 200, d = 4, d_v = 3;
  Index large_bounds = 0;
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal})
    for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
      const Tokens<T> x = random_tokens<T>(n, n, d, d_v, seed);
      // few features of long rows, so that some denominators are near zero
      const Attention attention(
          trf<T>(d, 2, seed), RelativePosition<T>(random_table<T>(n, 3)),
          {.direction = Direction::causal, .normalization = Normalization::unit(2), .engine = engine});
      Report report;
      const Matrix<T> y = attention(x.q, x.k, x.v, {.report = &report});
      const Matrix<T> expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
      double error = 0;
      for (Index i = 0; i < n; ++i)
        error = std::max(error, static_cast<double>((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff() /
                                                    x.v.topRows(i + 1).cwiseAbs().maxCoeff()));
      CHECK(error <= report.error_bound);
      large_bounds += report.error_bound > 100 * epsilon<T>;
    }
  CHECK(large_bounds > 5);
}

}  // namespace nprf::test::attention_fallback_row_error_bound
