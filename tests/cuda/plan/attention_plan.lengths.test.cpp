// SPDX-License-Identifier: MIT
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Sequences of different lengths in one batch.
namespace nprf::test::cuda_plan_attention_plan_lengths {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr double tolerance = 20 * eps;           // of y, as in attention_plan.test.cpp
constexpr double gradient_tolerance = 10 * eps;  // as in backward.test.cpp

constexpr Index d = 6, n_k = 50;
const cuda::PlanShape shape{.batch = 4, .heads = 2, .n_q = 70, .n_k = n_k, .d_v = 5, .heads_k = 1};
const std::vector<int> lengths{n_k, 17, 1, 0};

Attention<PositiveFeatures<float>, RelativePosition<float>> attention(const AttentionOptions& options = {}) {
  return Attention(orf<float>(d, 16, 7), RelativePosition<float>(normal_vector<float>(41, 5)), options);
}

/// Keys and values beyond the lengths are NaN.
HeadsCase padded_case() {
  HeadsCase x(shape, d);
  for (Index b = 0; b < shape.batch; ++b) {
    const Index length = lengths[static_cast<std::size_t>(b)], padding = n_k - length;
    x.k.middleRows(b * n_k + length, padding).setConstant(nan);
    x.v.middleRows(b * n_k + length, padding).setConstant(nan);
  }
  return x;
}

}  // namespace

TEST_CASE("keys beyond the length of their sequence are padding, as on the CPU", "[cuda]") {
  const HeadsCase x = padded_case();
  const DeviceArray<int> on_device(lengths);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
      const auto cpu = attention({.direction = direction});
      const cuda::AttentionPlan<float> plan(cuda::model_of(cpu), shape, {.engine = engine, .gradients = true});
      const HeadsResults got = x.results(plan, {.lengths = on_device.data()});
      INFO(name(engine) << (direction == Direction::causal ? ", causal" : ""));
      CHECK(got.counts.empty_rows == 2 * shape.n_q);  // of the last sequence
      check_heads(
          x, got, [&](Index) { return cpu; }, tolerance, gradient_tolerance, {}, lengths);
      for (Index b = 0; b < shape.batch; ++b) {
        const Index length = lengths[static_cast<std::size_t>(b)], padding = n_k - length;
        CHECK(got.dk.middleRows(b * n_k + length, padding).isZero(0));
        CHECK(got.dv.middleRows(b * n_k + length, padding).isZero(0));
      }
    }
}

TEST_CASE("lengths and a mask give the bits of the mask of both", "[cuda]") {
  const HeadsCase x = padded_case();
  std::vector<unsigned char> mask(static_cast<std::size_t>(shape.batch * n_k)), both(mask.size());
  for (Index b = 0; b < shape.batch; ++b)
    for (Index j = 0; j < n_k; ++j) {
      const auto at = static_cast<std::size_t>(b * n_k + j);
      mask[at] = at % 5 != 0;
      both[at] = mask[at] != 0 && j < lengths[static_cast<std::size_t>(b)];
    }
  const DeviceArray<int> of_lengths(lengths);
  const KeyMask of_mask(mask), of_both(both);
  for (const cuda::Engine engine : cuda_engines)
    for (const Index near : {0, 4}) {
      const cuda::AttentionPlan<float> plan(cuda::model_of(attention({.near = near})), shape,
                                            {.engine = engine, .gradients = true});
      const HeadsResults got = x.results(plan, {.key_mask = of_mask.call().key_mask, .lengths = of_lengths.data()}),
                         expected = x.results(plan, of_both.call());
      INFO(name(engine) << ", near " << near);
      CHECK((same_bits(got.y, expected.y) && same_bits(got.dq, expected.dq) && same_bits(got.dk, expected.dk)));
      CHECK((same_bits(got.dv, expected.dv) && same_bits(got.parameters, expected.parameters)));
      CHECK((got.y.allFinite() && got.dk.allFinite()));
    }
}

}  // namespace nprf::test::cuda_plan_attention_plan_lengths
