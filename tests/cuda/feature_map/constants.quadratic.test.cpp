// SPDX-License-Identifier: MIT
#include "nprf/cuda/feature_map/constants.cuh"

#include <limits>

#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_feature_map_constants_quadratic {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

RelativePosition<float> clipped() { return RelativePosition<float>(normal_vector<float>(41, 5)); }

QuadraticFeatures<float> curved(Index d, float log_scale = 0) {
  return {d, {d - 1, 3, 0.1f * normal_vector<float>(3, 8).cwiseAbs(), 0.2f * normal_vector<float>(d, 9), log_scale}};
}

}  // namespace

TEST_CASE("quadratic features agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      if (uses_fft(engine) && direction == Direction::causal) continue;  // in which rows fail the FFT error bound
      INFO(name(engine) << (direction == Direction::causal ? ", causal" : ""));
      const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3}, {.engine = engine, .gradients = true}, 6};
      for (const Index directions : {0, 1, 6}) {
        const Attention attention(TaylorFeatures<float>({.input_dim = 6, .directions = directions}), clipped(),
                                  {.direction = direction});
        INFO(directions << " directions");
        // of y: terms of both signs, whose sum of magnitudes is a few times the denominator
        CHECK(x.error(attention) <= 40 * eps);
        CHECK(gradient_error(x, attention) <= 10 * eps);
      }
      const Attention attention(curved(6), clipped(), {.direction = direction});
      CHECK(x.error(attention) <= 40 * eps);
      CHECK(gradient_error(x, attention) <= 10 * eps);
    }
}

TEST_CASE("quadratic features have their scale relative to the exact weights of a near field", "[cuda]") {
  const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  for (const float log_scale : {-1.0f, 0.0f, 0.5f}) {
    INFO("log_scale " << log_scale);
    const Attention attention(curved(6, log_scale), clipped(), {.near = 5});
    CHECK(x.error(attention) <= 40 * eps);
    CHECK(gradient_error(x, attention) <= 10 * eps);
    const Attention of_constants(QuadraticFeatures<float>(6, {2, 1, Vector<float>::Ones(1), {}, log_scale}), clipped(),
                                 {.near = 5});
    CHECK(x.error(of_constants) <= 40 * eps);
  }
}

TEST_CASE("16-bit storage of quadratic features has the precision of bfloat16", "[cuda]") {
  const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  // an error of each term, and terms of both signs
  CHECK(x.error<__nv_bfloat16>(Attention(curved(6), clipped())) <= 16 * 0x1p-8);
}

TEST_CASE("the constants of quadratic features must fit together", "[cuda]") {
  const cuda::AttentionModel valid = cuda::model_of(Attention(curved(6), clipped()));
  const auto refused = [&](auto&& modify, const char* message) {
    cuda::AttentionModel bad = valid;
    modify(bad.features[0]);
    check_invalid([&] { cuda::AttentionPlan<float>(bad, {.n_q = 8, .n_k = 8, .d_v = 3}); }, {message});
  };
  refused([](auto& map) { map.second = 6; }, "first and second: expected 0 <= second <= first <= 6");
  refused([](auto& map) { map.mean_square.pop_back(); }, "mean_square: expected 3 scalars, got 2");
  refused([](auto& map) { map.curvature.pop_back(); }, "curvature: expected 6 scalars, got 5");
  refused([](auto& map) { map.m = 3, map.projection.resize(18); }, "num_features: expected 0 for elu and quadratic");
}

}  // namespace nprf::test::cuda_feature_map_constants_quadratic
