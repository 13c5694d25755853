// SPDX-License-Identifier: MIT
//
// The rows of steps are those of the formula, for all positions, with positive features.
#include "nprf/decoder/decoder.hpp"

#include "decoder/check_steps.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder {

using namespace decoder_steps;

TEMPLATE_TEST_CASE("steps: positive features", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3));
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none()});
  check_positions(sphere_prf<T>(d, 8, 3));
  check_positions(HyperbolicFeatures<T>({.input_dim = d, .num_features = 9}), {.near = 7});
}

TEMPLATE_TEST_CASE("steps: attention sinks", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3), {.sinks = 1});
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none(), .near = 7, .sinks = 4});
  check_positions(orf<T>(d, 12, 3), {.near = 2, .sinks = 100});
}

TEMPLATE_TEST_CASE("steps: features of another kernel", "[decoder]", NPRF_TEST_SCALARS) {
  check_positions(EluFeatures<TestType>(d));
}

TEST_CASE("steps: a line for a table that sequences do not outgrow", "[decoder]") {
  using T = float;
  constexpr Index n = 300;
  Vector<T> falling(2 * n + 1);
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.1) * static_cast<T>(std::abs(l - n));
  const auto map = orf<T>(d, 12, 3);
  const HeldPosition<T> position{RelativePosition<T>(falling).bias()};
  const AttentionOptions causal{.direction = Direction::causal};
  TokenBatch<T> x(1, 1, 1, n + 1, d, d_v, 7);
  Decoder limited(MultiHeadAttention(map, position, causal), {.most_tokens = n}),
      any(MultiHeadAttention(map, position, causal));
  x.prefill(any, 0, n);
  x.prefill(limited, 0, 20);
  Report report;
  for (Index i = 20; i < n; ++i) x.step(limited, i, 1, {.report = &report});
  CHECK(limited.bytes() * 5 < any.bytes());
  const Matrix<T> q = x.q(0, 0).topRows(n), k = x.k(0, 0).topRows(n), v = x.v(0, 0).topRows(n),
                  expected = reference::kernelized_attention(Attention(map, position, causal), q, k, v);
  CHECK(ratio_to_bound(Matrix<T>(x.y(0, 0).middleRows(20, n - 20)), Matrix<T>(expected.bottomRows(n - 20)),
                       report.error_bound, v) <= 1);
  CHECK(report.error_bound < 1e-4);
  check_invalid([&] { x.step(limited, n, 1); }, {"at most 300", "most_tokens", "got 300 and 1 more"});
  CHECK(limited.tokens(0) == n);
}

}  // namespace nprf::test::decoder_decoder
