// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"

/// Whether the rows of steps are those of the formula, for all positions.
namespace nprf::test::decoder_steps {

constexpr Index d = 5, d_v = 3;

/// Runs a prompt and then steps of 1, 2, ... tokens, and compares all rows of the steps with the reference. Rows that
/// are recomputed, or fail, are not of this formula: there may be at most `others` of them.
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

/// Checks each position, for one map; all as one type, to compile once
template <class F>
void check_positions(const F& map, AttentionOptions options = {}, Index others = 0) {
  using T = typename F::Scalar;
  const Index n = NPRF_TEST_SANITIZED ? 70 : 150;
  const Vector<T> table = T(0.5) * random_table<T>(20, 3);
  Vector<T> window = table, falling(2 * 400 + 1), long_table = T(0.3) * random_table<T>(n + 40, 5);
  window.head(4).setConstant(-std::numeric_limits<T>::infinity());
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

}  // namespace nprf::test::decoder_steps
