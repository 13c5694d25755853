// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

/// ALiBi by the banded engine, in linear time.
namespace nprf::test::cuda_plan_attention_plan_alibi {

namespace {

// of y, relative to the largest |v|, and of gradients, relative to the magnitude of the terms that they are sums of
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon()), tolerance = 20 * eps,
                 gradient_tolerance = 10 * eps;

struct Sizes {
  Index n_q, n_k, offset;
};
const std::vector<Sizes> sizes{{1, 1, 0},      {300, 300, 0},    {70, 600, 500},
                               {600, 70, -20}, {260, 260, -300}, {260, 130, 140}};

auto attention(float slope, Direction direction) {
  return Attention(orf<float>(6, 16, 7), AlibiPosition<float>(slope), {.direction = direction});
}

PlanCase plan_case(const Sizes& s, bool gradients = false) {
  return {{.n_q = s.n_q, .n_k = s.n_k, .d_v = 5, .offset = s.offset},
          {.engine = cuda::Engine::banded, .gradients = gradients},
          6};
}

}  // namespace

TEST_CASE("the banded engine computes ALiBi of any slope", "[cuda]") {
  for (const float slope : NPRF_TEST_FEW_CASES
                               ? std::vector<float>{0, 0.004f, 30, 1e30f, -0.2f}
                               : std::vector<float>{0, 1e-6f, 0.004f, 0.1f, 1, 30, 1e30f, -1e-3f, -0.2f, -1e30f})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Sizes& s : sizes) {
        INFO("slope " << slope << ", n_q " << s.n_q << ", n_k " << s.n_k << ", offset " << s.offset
                      << (direction == Direction::causal ? ", causal" : ""));
        const PlanCase x = plan_case(s);
        CHECK(x.error(attention(slope, direction)) <= tolerance);
        // both A and B, their weighted product and M are rounded to half or bfloat16, and so is y; see TensorTile
        if (std::abs(slope) >= 1) continue;
        CHECK(x.error<__half>(attention(slope, direction)) <= (4 * 2 + 1 + 1) * 0x1p-11);
        if (s.n_q == 260) CHECK(x.error<__nv_bfloat16>(attention(slope, direction)) <= (4 * 2 + 1 + 1) * 0x1p-8);
      }
}

TEST_CASE("the gradients of ALiBi by the banded engine agree with the CPU's", "[cuda]") {
  for (const float slope : NPRF_TEST_FEW_CASES ? std::vector<float>{0, 0.004f, 1, -0.1f}
                                               : std::vector<float>{0, 1e-6f, 0.004f, 0.1f, 1, -1e-3f, -0.1f})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Sizes& s : {Sizes{2, 3, 0}, sizes[1], sizes[3], sizes[5]}) {
        INFO("slope " << slope << ", n_q " << s.n_q << ", n_k " << s.n_k << ", offset " << s.offset
                      << (direction == Direction::causal ? ", causal" : ""));
        CHECK(gradient_error(plan_case(s, true), attention(slope, direction)) <= gradient_tolerance);
      }
}

TEST_CASE("a slope may change its sign on the device, for each head", "[cuda]") {
  const std::vector<float> slopes{0.05f, -0.02f};
  cuda::AttentionModel model = cuda::model_of(attention(1, Direction::bidirectional));
  model.positions.push_back(cuda::model_of(AlibiPosition<float>(2)));
  const HeadsCase x({.heads = 2, .n_q = 300, .n_k = 300, .d_v = 5}, 6);
  cuda::AttentionPlan<float> plan(model, x.shape, {.engine = cuda::Engine::banded, .gradients = true});
  plan.set_parameters(DeviceArray<float>(slopes).data(), nullptr);
  const auto of_head = [&](Index h) {
    return attention(slopes[static_cast<std::size_t>(h)], Direction::bidirectional);
  };
  check_heads(x, x.results(plan), of_head, tolerance, gradient_tolerance);
}

TEST_CASE("padding and non-finite inputs affect the rows of ALiBi as with the direct engine", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    PlanCase x = plan_case({400, 400, 0}, true);
    std::vector<unsigned char> key_mask(400, 1);
    for (std::size_t j = 100; j < 250; ++j) key_mask[j] = 0;
    x.k.row(130).setConstant(nan), x.v.row(131).setConstant(nan);  // padding
    const KeyMask mask(key_mask);
    const cuda::PlanCall call = mask.call();
    const auto on_cpu = attention(0.02f, direction);
    const auto banded = x.plan(on_cpu);
    x.options.engine = cuda::Engine::direct;
    const auto direct = x.plan(on_cpu);
    INFO((direction == Direction::causal ? "causal" : "bidirectional"));
    const float largest = 5;  // of |v| that takes part
    CHECK((x.result(*banded, call) - x.result(*direct, call)).cwiseAbs().maxCoeff() <=
          static_cast<float>(tolerance) * largest);
    const Matrix<float> dy = normal<float>(400, 5, 9);
    const Gradients<float> a = gradients_of(x, *banded, dy, call), b = gradients_of(x, *direct, dy, call);
    Matrix<float> k = x.k, v = x.v;
    k.row(130).setZero(), v.row(131).setZero();
    CHECK(difference(a, b, gradient_magnitudes(on_cpu, x.q, k, v, dy, 0)) <= gradient_tolerance);
    CHECK((a.keys.middleRows(100, 150).isZero(0) && a.values.middleRows(100, 150).isZero(0)));

    x.v(300, 2) = nan;
    const Matrix<float> y = x.result(*banded, call), by_direct = x.result(*direct, call);
    CHECK(y.array().isNaN().matrix() == by_direct.array().isNaN().matrix());
  }
}

TEST_CASE("the automatic engine is banded for ALiBi of long sequences", "[cuda]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const bool gradients : {false, true}) {
      const PlanCase x{{.n_q = 8192, .n_k = 8192, .d_v = 64}, {.gradients = gradients, .owns_workspace = false}, 16};
      CHECK(x.plan(Attention(orf<float>(16, 32, 7), AlibiPosition<float>(0.1f), {.direction = direction}))->engine() ==
            cuda::Engine::banded);
      const PlanCase few{{.n_q = 100, .n_k = 100, .d_v = 64}, {.owns_workspace = false}, 16};
      CHECK(
          few.plan(Attention(orf<float>(16, 32, 7), AlibiPosition<float>(0.1f), {.direction = direction}))->engine() ==
          cuda::Engine::direct);
    }
}

}  // namespace nprf::test::cuda_plan_attention_plan_alibi
