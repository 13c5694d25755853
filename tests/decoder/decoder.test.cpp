// SPDX-License-Identifier: MIT
//
// The rows of steps are those of the formula, for all positions and feature maps.
#include "nprf/decoder/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder {

namespace {

constexpr Index d = 5, d_v = 3;
constexpr double infinity = std::numeric_limits<double>::infinity();

// Runs a prompt and then steps of 1, 2, ... tokens, and compares all rows of the steps with the reference. Rows that
// are recomputed, or fail, are not of this formula: there may be at most `others` of them.
template <class F, class P>
void check(const F& map, const P& position, Index n, AttentionOptions options = {}, Index others = 0) {
  using T = typename F::Scalar;
  options.direction = Direction::causal;
  const Attention one(map, position, options);
  TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
  Decoder decoder(MultiHeadAttention(map, position, options), {.rollback = n % 3});
  const Index prompt = n / 3;
  x.prefill(decoder, 0, prompt);
  Report report;
  double bound = 0;
  Index other = 0;
  for (Index first = prompt, count = 1; first < n; first += count, count = std::min(first % 4 + 1, n - first)) {
    x.step(decoder, first, count, {.report = &report});
    if (report.failing_rows == 0) bound = std::max(bound, report.error_bound);
    other += report.repaired_rows + report.failing_rows;
    CHECK(report.engine == Engine::recurrence);
  }
  CHECK(decoder.tokens(0) == n);
  const Matrix<T> q = x.q(0, 0), k = x.k(0, 0), v = x.v(0, 0), y = x.y(0, 0);
  const Matrix<T> expected = reference::kernelized_attention(one, q, k, v);
  const double largest = bound * static_cast<double>(v.cwiseAbs().maxCoeff());
  Index different = 0;
  for (Index i = prompt; i < n; ++i)
    different += !((y.row(i) - expected.row(i)).template cast<double>().cwiseAbs().maxCoeff() <= largest);
  CHECK(different <= other);
  CHECK(other <= others);
  CHECK(bound < (sizeof(T) == sizeof(float) ? 1e-3 : 1e-11));
}

// each position, for one map; all as one type, to compile once
template <class F>
void check_positions(const F& map, AttentionOptions options = {}, Index others = 0) {
  using T = typename F::Scalar;
  const Index n = NPRF_TEST_SANITIZED ? 70 : 150;
  const Vector<T> table = T(0.5) * random_table<T>(20, 3);
  Vector<T> window = table, falling(2 * 400 + 1), long_table = T(0.3) * random_table<T>(n + 40, 5);
  window.head(4).setConstant(-static_cast<T>(infinity));
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.5) * static_cast<T>(std::abs(l - 400));
  const auto check_one = [&](const char* name, const auto& position) {
    INFO(name);
    check(map, HeldPosition<T>{position.bias()}, n, options, others);
  };
  check_one("none", NoPosition<T>());
  check_one("ALiBi", AlibiPosition<T>(T(0.2)));
  check_one("rising", AlibiPosition<T>(T(-0.2)));
  check_one("T5", t5_position<T>(normal<T>(1, 16, 2).row(0), Direction::causal, 40));
  check_one("clipped table", RelativePosition<T>(table));
  check_one("window", RelativePosition<T>(window));
  check_one("ALiBi as a table", RelativePosition<T>(falling));
  check_one("table longer than the sequence", RelativePosition<T>(long_table));
}

template <Real T>
Centred<TaylorFeatures<T>> centred() {
  const Matrix<T> q = normal<T>(60, d, 90), k = normal<T>(60, d, 91);
  return {TaylorFeatures<T>({.input_dim = d, .directions = 3}), balance<T>(q, k).constants};
}

}  // namespace

TEMPLATE_TEST_CASE("steps: positive features", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3));
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none()});
  check_positions(HyperbolicFeatures<T>({.input_dim = d, .num_features = 9}), {.near = 7});
}

TEMPLATE_TEST_CASE("steps: other maps", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(sphere_prf<T>(d, 8, 3));
  check_positions(EluFeatures<T>(d));
  check_positions(trf<T>(d, 200, 3), {.normalization = Normalization::unit(0.5)});
}

TEMPLATE_TEST_CASE("steps: series", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(TaylorFeatures<T>({.input_dim = d, .directions = 2}), {}, 3);
  check_positions(centred<T>(), {.near = 33}, 20);
  check_positions(centred<T>(), {.near = 1}, 20);
}

}  // namespace nprf::test::decoder_decoder
