// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/decode_case.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

/// A DecodePlan with a near field, attention sinks and grouped queries.
namespace nprf::test::cuda_plan_decode_plan_near {

namespace {

using T = float;
constexpr Index d = 6, d_v = 5;

}  // namespace

// features have no part in it: the CPU's Decoder could not hide an error in what both share
TEST_CASE("decoding on a GPU: rows whose keys are all exact are those of softmax", "[cuda]") {
  constexpr Index n = 40, wide = 70;  // more channels than a warp has lanes, and than are computed at a time
  const AlibiPosition<double> alibi(0.25);
  for (const ExactTokens exact : {ExactTokens{n, 0}, {0, n}, {n / 2, n / 2}, {n - 1, 1}}) {
    const TokenBatch<T> x(1, 1, 1, n, wide, wide, 7);
    const DecodeModel model(std::vector{orf<T>(wide, 16, 3)}, {of_alibi(T(0.25))}, 1,
                            {.normalization = Normalization::unit(3), .near = exact.near, .sinks = exact.sinks});
    const Matrix<double> q = x.q.values.cast<double>(), k = x.k.values.cast<double>(), v = x.v.values.cast<double>();
    const Matrix<double> expected =
        reference::softmax_attention<double>(q, k, v, alibi, Direction::causal, Normalization::unit(3));
    const double bound = error_of_softmax<T>(wide, 9, 0.25 * n, n) * v.cwiseAbs().maxCoeff();
    CHECK(bound < 1e-3);
    INFO("near " << exact.near << ", sinks " << exact.sinks);
    CHECK(worst_ratio(rows_of_steps(model.model, x), expected, bound) <= 1);
  }
}

TEST_CASE("decoding on a GPU: bits of exact keys do not depend on the division of the tokens", "[cuda]") {
  constexpr Index n = 24;
  for (const DecodePosition& position : {of_t5(), of_alibi(T(0.1))}) {
    TokenBatch<T> x(2, 2, 2, n, d, d_v, 7);
    const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {position}, 2, {.near = 5, .sinks = 3});
    const Matrix<T> expected = rows_of_steps(model.model, x);
    const DecodeCase divided(x);
    cuda::DecodePlan<T> plan(model.model, divided.shape());
    for (const int round : {0, 1}) {  // the second one after a reset
      divided.step(plan, 0, 2);
      divided.append(plan, 2, 8);
      const DeviceArray<int> second_alone(std::vector<int>{0, 2}), first_alone(std::vector<int>{2, 0});
      divided.append(plan, 10, 2, {.lengths = second_alone.data()});
      divided.append(plan, 10, 2, {.lengths = first_alone.data()});
      for (Index t = 12; t < n; ++t) divided.step(plan, t, 1);
      const Matrix<T> y = divided.y();
      INFO(position.name << ", round " << round);
      for (Index z = 0; z < 4; ++z) {
        CHECK(same_bits<T>(y.middleRows(z * n, 2), expected.middleRows(z * n, 2)));
        CHECK(same_bits<T>(y.middleRows(z * n + 12, n - 12), expected.middleRows(z * n + 12, n - 12)));
      }
      plan.reset();
    }
  }
}

TEST_CASE("decoding on a GPU: exact keys with a limit of tokens", "[cuda]") {
  constexpr Index n = 12;
  TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
  const DecodeCase on_device(x);
  Matrix<T> biases = normal<T>(1, 16, 2);
  biases(0, 0) = 1 + biases.maxCoeff();  // so that biases are relative to that of age 0, with and without the limit
  const DecodePosition of_t5{"T5", t5_position<T>(biases.row(0), Direction::causal, 20)};
  for (const DecodePosition& position : {of_t5, of_alibi(T(0.1))})
    for (const ExactTokens exact : {ExactTokens{4, 0}, {0, 5}, {5, 7}, {6, 5}, {1 << 28, 0}, {0, 1 << 28}}) {
      DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {position}, 1, {.near = 4, .sinks = 3});
      model.model.near = exact.near, model.model.sinks = exact.sinks;
      cuda::AttentionModel clamped = model.model;  // to what makes no difference for n tokens
      clamped.near = std::min(exact.near, n), clamped.sinks = std::min(exact.sinks, n);
      const Matrix<T> expected = rows_of_steps(clamped, x);
      cuda::DecodePlan<T> plan(model.model, on_device.shape(n));
      on_device.step(plan, 0, n);
      INFO(text(position, exact));
      CHECK(same_bits(on_device.y(), expected));
      on_device.step(plan, 0, 1);
      CHECK(plan.host_counts().rejected_tokens == 1);
      CHECK(on_device.y().row(0).array().isNaN().all());
    }
}

TEST_CASE("decoding on a GPU: grouped queries", "[cuda]") {
  constexpr Index n = 24, heads = 4, heads_k = 2;
  const std::vector<DecodePosition> one{of_t5()},
      for_each{of_alibi(T(0.1)), of_alibi(T(0.2)), of_alibi(T(0.3)), of_alibi(0)};
  std::vector<PositiveFeatures<T>> maps;
  for (std::uint64_t h = 0; h < heads; ++h) maps.push_back(orf<T>(d, 16, h));
  for (const bool has_maps : {true, false})
    for (const std::vector<DecodePosition>& positions : {one, for_each})
      for (const ExactTokens exact : {ExactTokens{0, 0}, {4, 2}}) {
        const AttentionOptions options{.near = exact.near, .sinks = exact.sinks};
        const std::vector<PositiveFeatures<T>> of_heads(maps.begin(), has_maps ? maps.end() : maps.begin() + 1);
        TokenBatch<T> x(2, heads, heads_k, n, d, d_v, 7);
        const ComparedSteps compared = compare_after_prompts({of_heads, positions, 2, options}, x, {7, 3});
        INFO((has_maps ? "a map for each head, " : "") << text(positions.front(), exact));
        CHECK(compared.special == 0);
        CHECK(compared.different == 0);
        CHECK(compared.rows == 2 * heads * (n - 7));
        // the bits of a plan whose heads have keys of their own
        TokenBatch<T> repeated(2, heads, heads, n, d, d_v, 7);
        for (Index b = 0; b < 2; ++b)
          for (Index h = 0; h < heads; ++h) {
            const Index to = (b * heads + h) * n, from = (b * heads_k + h / (heads / heads_k)) * n;
            repeated.k.values.middleRows(to, n) = x.k.values.middleRows(from, n);
            repeated.v.values.middleRows(to, n) = x.v.values.middleRows(from, n);
          }
        const cuda::AttentionModel model = DecodeModel(of_heads, positions, 2, options).model;
        CHECK(same_bits(rows_of_steps(model, x), rows_of_steps(model, repeated)));
      }
}

}  // namespace nprf::test::cuda_plan_decode_plan_near
