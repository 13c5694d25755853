// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/exact/near_sums.cuh"

#include <limits>
#include <type_traits>
#include <utility>

#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_attention_exact_near_sums {

namespace {

// of y, relative to the largest |v|: the errors of features and of exponents of a few units, and of sums
constexpr double tolerance = 40 * static_cast<double>(std::numeric_limits<float>::epsilon());

constexpr double no_tolerance = std::numeric_limits<double>::infinity();

RelativePosition<float> clipped(Index reach = 20) {
  return RelativePosition<float>(normal_vector<float>(2 * reach + 1, 5));
}
GridPosition<float> grid(Index height, Index width, Index extra) {
  return {height, width, normal<float>(2 * height - 1, 2 * width - 1, 5), normal<float>(extra, extra + 2, 6)};
}

}  // namespace

TEST_CASE("a near field agrees with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Index near : NPRF_TEST_FEW_CASES ? std::vector<Index>{7, 1000} : std::vector<Index>{1, 7, 100, 1000}) {
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", near " << near);
        const AttentionOptions options{.direction = direction, .normalization = Normalization::unit(2), .near = near};
        const PlanCase x{
            {.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3}, {.engine = engine, .tolerance = no_tolerance}, 6};
        CHECK(x.error_beyond_fft(Attention(orf<float>(6, 16, 7), clipped(), options)) <= tolerance);
        CHECK(x.error_beyond_fft(Attention(orf<float>(6, 16, 7), NoPosition<float>(), options)) <= tolerance);
        const PlanCase wide{
            {.n_q = 200, .n_k = 70, .d_v = 70, .offset = -20}, {.engine = engine, .tolerance = no_tolerance}, 40};
        CHECK(wide.error_beyond_fft(Attention(orf<float>(40, 16, 7), AlibiPosition<float>(0.1f), options)) <=
              tolerance);
      }
}

TEST_CASE("a near field works with all feature maps that estimate exp", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::fused}) {
    const PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = engine, .tolerance = no_tolerance}, 6};
    const AttentionOptions near{.near = 5}, scaled{.normalization = Normalization::none(), .near = 5};
    INFO(name(engine));
    for (const AttentionOptions& options : {near, scaled}) {
      CHECK(x.error_beyond_fft(Attention(orf<float>(6, 16, 7), clipped(), options)) <= tolerance);
      CHECK(x.error_beyond_fft(Attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), clipped(),
                                         options)) <= tolerance);
      CHECK(x.error_beyond_fft(
                Attention(TaylorFeatures<float>({.input_dim = 6, .directions = 3}), clipped(), options)) <= tolerance);
    }
    CHECK(x.error_beyond_fft(Attention(TrigonometricFeatures<float>({.input_dim = 6, .num_features = 200}), clipped(),
                                       near)) <= 10 * tolerance);
  }
}

TEST_CASE("a near field of a grid is a square of cells", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::cufft})
    for (const Index extra : {0, 2})
      for (const Index near : {1, 2, 4, 30})
        for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
          const Index n = extra + 9 * 11;
          INFO(name(engine) << ", " << extra << " extra tokens, near " << near);
          const PlanCase x{{.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine, .tolerance = no_tolerance}, 6};
          CHECK(x.error_beyond_fft(Attention(orf<float>(6, 16, 7), grid(9, 11, extra),
                                             {.direction = direction, .near = near})) <= tolerance);
        }
}

TEST_CASE("near pairs whose weights are far above those of features do not overflow", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const float size : {1.0f, 5.0f}) {
      PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = engine, .tolerance = no_tolerance}, 6};
      x.k = size * x.q;
      x.q *= size;
      INFO(name(engine) << ", norms of about " << size * 2.4);
      const Attention attention(orf<float>(6, 16, 7), clipped(), {.normalization = Normalization::none(), .near = 3});
      CHECK(x.error_beyond_fft(attention) <= size * size * tolerance);
    }
}

TEST_CASE("padding and non-finite keys of a near field affect only the rows that attend to them", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal, .near = 8});
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    PlanCase x{{.n_q = 200, .n_k = 200, .d_v = 5}, {.engine = engine}, 6};
    std::vector<unsigned char> mask(200, 1);
    mask[77] = mask[90] = 0;
    const KeyMask of_keys(mask);
    const cuda::PlanCall call = of_keys.call();
    const auto plan = x.plan(causal);
    x.k.row(77).setConstant(nan);
    const Matrix<float> before = x.result(*plan, call);
    x.k.bottomRows(50).setConstant(nan);
    x.v.bottomRows(50).setConstant(nan);
    x.q.row(17).setConstant(nan);
    const Matrix<float> after = x.result(*plan, call);
    INFO(name(engine));
    for (Index i = 0; i < 200; ++i) {
      const bool is_affected = i == 17 || i >= 150;
      CHECK((is_affected ? after.row(i).array().isNaN().all() : after.row(i) == before.row(i)));
    }
    CHECK(before.allFinite());
  }
}

TEST_CASE("infinite values among near keys affect only the rows that attend to them", "[cuda]") {
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal, .near = 8});
  PlanCase x{{.n_q = 200, .n_k = 200, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  const auto plan = x.plan(causal);
  const Matrix<float> before = x.result(*plan);
  x.v.row(100).setConstant(std::numeric_limits<float>::infinity());
  const Matrix<float> after = x.result(*plan);
  for (Index i = 0; i < 200; ++i)
    CHECK((i < 100 ? after.row(i) == before.row(i) : !after.row(i).array().isFinite().any()));
  CHECK(before.allFinite());
}

TEMPLATE_TEST_CASE("the near field of 16-bit storage is in float", "[cuda]", __half, __nv_bfloat16) {
  const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  // y is rounded, and with a wide field nothing else
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8;
  const AttentionOptions all{.direction = Direction::causal, .near = 1000}, some{.near = 9};
  CHECK(x.error<TestType>(Attention(orf<float>(6, 16, 7), clipped(), all)) <= u + tolerance);
  CHECK(x.error<TestType>(Attention(orf<float>(6, 16, 7), clipped(), some)) <= 8 * u);
}

TEST_CASE("a plan refuses a near field that it does not support", "[cuda]") {
  cuda::AttentionModel model = cuda::model_of(Attention(EluFeatures<float>(4), clipped()));
  model.near = 3;
  const cuda::PlanShape shape{.n_q = 8, .n_k = 8, .d_v = 3};
  check_invalid([&] { cuda::AttentionPlan<float>(model, shape); }, {"near: expected 0 or more", "got 3"});
  model = cuda::model_of(Attention(orf<float>(4, 5, 7), grid(2, 4, 0), {.near = 3}));
  model.positions[0].pitch = 0;
  check_invalid([&] { cuda::AttentionPlan<float>(model, shape); }, {"near: expected 0 or more", "got 3"});
}

}  // namespace nprf::test::cuda_attention_exact_near_sums
