// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/exact/backward.cuh"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/gradient_case.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_exact_backward {

namespace {

// relative to the largest entry of a gradient, which is a sum of terms of both signs
constexpr double tolerance = 100 * static_cast<double>(std::numeric_limits<float>::epsilon());

// no row may fail the FFT error bound
constexpr double no_tolerance = std::numeric_limits<double>::infinity();

RelativePosition<float> clipped() { return RelativePosition<float>(normal_vector<float>(41, 5)); }

}  // namespace

TEST_CASE("the gradients of a near field agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Index near : NPRF_TEST_FEW_CASES ? std::vector<Index>{7} : std::vector<Index>{1, 7, 1000}) {
        // an FFT computes the first rows of causal attention with large errors
        if (uses_fft(engine) && direction == Direction::causal) continue;
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", near " << near);
        const AttentionOptions options{.direction = direction, .normalization = Normalization::unit(2), .near = near};
        const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3},
                         {.engine = engine, .gradients = true, .tolerance = no_tolerance},
                         6};
        CHECK(relative_gradient_error(x, Attention(orf<float>(6, 16, 7), clipped(), options)) <= tolerance);
        CHECK(relative_gradient_error(x, Attention(orf<float>(6, 16, 7), NoPosition<float>(), options)) <= tolerance);
        CHECK(relative_gradient_error(x, Attention(orf<float>(6, 16, 7), AlibiPosition<float>(0.1f), options)) <=
              tolerance);
        CHECK(relative_gradient_error(x, Attention(TaylorFeatures<float>({.input_dim = 6, .directions = 3}), clipped(),
                                                   {.direction = direction, .near = near})) <= tolerance);
      }
}

TEST_CASE("the gradients of a near field with up to 150 channels and values, without a norm", "[cuda]") {
  const AttentionOptions options{.normalization = Normalization::none(), .near = 9};
  // rows of 64 channels are loaded and stored 16 bytes at a time, of which 150 are no multiple
  for (const auto& [d, d_v] : std::vector<std::pair<Index, Index>>{{150, 70}, {64, 64}}) {
    INFO(d << " channels");
    const PlanCase x{{.n_q = 70, .n_k = 70, .d_v = d_v}, {.engine = cuda::Engine::direct, .gradients = true}, d};
    CHECK(relative_gradient_error(x, Attention(orf<float>(d, 16, 7), clipped(), options)) <= 10 * tolerance);
  }
}

TEST_CASE("the gradients of a near field are affected only by keys that the row attends to", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal, .near = 8});
  PlanCase x{{.n_q = 100, .n_k = 100, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  const auto plan = x.plan(causal);
  const Matrix<float> dy = normal<float>(100, 5, 9), before = gradients_of(x, *plan, dy).queries;
  x.k.bottomRows(20).setConstant(nan);
  x.v.bottomRows(20).setConstant(nan);
  const Matrix<float> after = gradients_of(x, *plan, dy).queries;
  CHECK(before.allFinite());
  CHECK(after.topRows(80) == before.topRows(80));
  CHECK(after.bottomRows(20).array().isNaN().all());
}

TEST_CASE("the gradients of a near field of a grid agree with the CPU's", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::cufft})
    for (const Index extra : {0, 2}) {
      const Index n = extra + 5 * 7;
      INFO(name(engine) << ", " << extra << " extra tokens");
      const PlanCase x{
          {.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine, .gradients = true, .tolerance = no_tolerance}, 6};
      const GridPosition<float> grid(5, 7, normal<float>(9, 13, 5), normal<float>(extra, extra + 2, 6));
      const Attention attention(orf<float>(6, 16, 7), grid, {.near = 2});
      CHECK(relative_gradient_error(x, attention) <= tolerance);
    }
}

TEST_CASE("heads with a near field may have different centrings and positions, and sequences different padding",
          "[cuda]") {
  constexpr Index n = 70;
  HeadsCase x({.batch = 2, .heads = 2, .n_q = n, .n_k = n, .d_v = 5}, 6);
  x.q = 0.5f * x.q.array() + 0.3f, x.k *= 0.5f;
  using Map = Centred<PositiveFeatures<float>>;
  std::vector<Attention<Map, RelativePosition<float>>> attentions;
  cuda::AttentionModel model;
  for (std::uint64_t h = 0; h < 2; ++h) {
    const auto z = static_cast<Index>(h);
    attentions.push_back({Map(orf<float>(6, 16, h), balance<float>(x.queries_of(x.q, z), x.keys_of(x.k, z)).constants),
                          RelativePosition<float>(normal_vector<float>(41, 10 + h)),
                          {.normalization = Normalization::none(), .near = 6}});
    const cuda::AttentionModel one = cuda::model_of(attentions.back());
    model.radius = one.radius, model.near = one.near;
    model.features.push_back(one.features[0]);
    model.positions.push_back(one.positions[0]);
  }
  std::vector<unsigned char> key_mask(2 * n, 1);
  std::fill(key_mask.begin() + 50, key_mask.begin() + 73, 0);
  const cuda::AttentionPlan<float> plan(model, x.shape, {.engine = cuda::Engine::direct, .gradients = true});
  const HeadsResults got = x.results(plan, KeyMask(key_mask).call());
  const auto of_head = [&](Index h) { return attentions[static_cast<std::size_t>(h)]; };
  check_heads(x, got, of_head, tolerance, tolerance / 10, key_mask);  // relative to the terms of gradients
}

TEST_CASE("the gradients of a near field support 16-bit storage", "[cuda]") {
  const PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  const Attention attention(orf<float>(6, 16, 7), clipped(), {.near = 5});
  CHECK(relative_gradient_error<__half>(x, attention) <= 0x1p-11 + tolerance);
  CHECK(relative_gradient_error<__nv_bfloat16>(x, attention) <= 0x1p-8 + tolerance);
}

}  // namespace nprf::test::cuda_attention_exact_backward
