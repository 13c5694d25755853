// SPDX-License-Identifier: MIT
//
// Plans by Engine::smooth. tests/cuda/toeplitz/smooth has the tests of its kernels.
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/curve.hpp"
#include "nprf/position/kerple.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_attention_plan_smooth {

namespace {

constexpr Index n = 700, d = 6;

// the default tolerance lets weights change by a quarter of it, and so y by half of it, relative to the largest |v|
constexpr double tolerance = default_tolerance<float> / 2;

RelativePosition<float> falling(float rate) {
  Vector<float> table(2 * n + 401);
  for (Index k = 0; k < table.size(); ++k)
    table[k] = -rate * std::log1p(0.1f * static_cast<float>(std::abs(k - table.size() / 2)));
  return RelativePosition<float>(table);
}

auto attention(const AttentionOptions& options = {}, float rate = 1) {
  return Attention(orf<float>(d, 8, 7), falling(rate), options);
}

PlanCase plan_case(const cuda::PlanShape& shape, bool gradients = false) {
  return {shape, {.engine = cuda::Engine::smooth, .gradients = gradients}, d};
}

}  // namespace

TEST_CASE("smooth biases change results by no more than the tolerance allows", "[cuda]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [n_q, n_k, offset] : std::vector<std::array<Index, 3>>{{n, n, 0}, {200, n, 500}, {n, 150, 0}}) {
      INFO("n_q " << n_q << ", n_k " << n_k << (direction == Direction::causal ? ", causal" : ""));
      const PlanCase x = plan_case({.n_q = n_q, .n_k = n_k, .d_v = 5, .offset = offset});
      CHECK(x.error(attention({.direction = direction})) <= tolerance);
      // with a near field or sinks the CPU would recompute rows, by exact softmax
      PlanCase direct = x;
      direct.options.engine = cuda::Engine::direct;
      const Attention exact = attention({.direction = direction, .near = 5, .sinks = 2});
      const double largest = static_cast<double>(x.v.cwiseAbs().maxCoeff());
      CHECK(static_cast<double>((x.result(exact) - direct.result(exact)).cwiseAbs().maxCoeff()) <= tolerance * largest);
    }
}

TEST_CASE("smooth biases support 16-bit storage", "[cuda]") {
  const PlanCase x = plan_case({.n_q = n, .n_k = n, .d_v = 8});
  CHECK(x.error<__half>(attention()) <= tolerance + 6 * 0x1p-11);
  CHECK(x.error<__nv_bfloat16>(attention()) <= tolerance + 7 * 0x1p-8);
}

TEST_CASE("gradients with smooth biases are those of the CPU up to the tolerance", "[cuda]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const PlanCase x = plan_case({.n_q = 600, .n_k = n, .d_v = 3, .offset = 50}, true);
    CHECK(gradient_error(x, attention({.direction = direction})) <= tolerance);
  }
  if (!can_multiply<__half>()) return;
  PlanCase x = plan_case({.n_q = 600, .n_k = n, .d_v = 3}, true);
  x.options.gradients_on_tensor_cores = true;
  CHECK(gradient_error<__half>(x, attention()) <= tolerance + 18 * 0x1p-11);
}

TEST_CASE("a plan by smooth biases follows parameters on the device, and each head has its own", "[cuda]") {
  const HeadsCase x({.batch = 2, .heads = 2, .n_q = n, .n_k = n, .d_v = 5, .heads_k = 1}, d);
  const std::vector<float> rates{0.5f, 2};
  std::vector<unsigned char> mask(static_cast<std::size_t>(2 * n));
  for (std::size_t k = 0; k < mask.size(); ++k) mask[k] = k % 7 != 0 && k < 1000;
  cuda::AttentionModel model = cuda::model_of(attention());
  model.positions.push_back(model.positions.front());
  std::vector<float> parameters;
  for (const float rate : rates) {
    const std::vector<float> of_head = cuda::model_of(falling(rate)).parameters;
    parameters.insert(parameters.end(), of_head.begin(), of_head.end());
  }
  cuda::AttentionPlan<float> plan(model, x.shape, {.engine = cuda::Engine::smooth, .gradients = true});
  plan.set_parameters(DeviceArray<float>(parameters).data(), nullptr);
  const KeyMask keys(mask);
  check_heads(
      x, x.results(plan, keys.call()), [&](Index h) { return attention({}, rates[static_cast<std::size_t>(h)]); },
      tolerance, tolerance, mask);
}

TEST_CASE("curves that reach all lags are computed by their tables, with the gradients of these", "[cuda]") {
  const CurvePosition<float, KerpleLog> curve(KerpleLog(1, 0.1), n);
  const Attention of_curve(orf<float>(d, 8, 7), curve, {.direction = Direction::causal});
  const PlanCase x = plan_case({.n_q = n, .n_k = n, .d_v = 3}, true);
  CHECK(x.error(of_curve) <= tolerance);
  const auto [got, expected, terms] = BothGradients::of<float>(x, of_curve, KeyMask({}));
  const std::vector<double> db(got.bias.data(), got.bias.data() + got.bias.size());
  Matrix<double> of_parameters;
  curve.gradient(-n, db, of_parameters);
  const Matrix<double> of_cpu = expected.bias.cast<double>();
  CHECK((of_parameters - of_cpu).cwiseAbs().maxCoeff() <= tolerance * of_cpu.cwiseAbs().maxCoeff());

  const auto refused = [&](Index n_q, Index n_k, Index offset) {
    check_invalid([&] { plan_case({.n_q = n_q, .n_k = n_k, .d_v = 3, .offset = offset}).plan(of_curve); },
                  {"position: expected a curve that reaches the lags "});
  };
  refused(n + 2, n, 0);
  refused(1, 1, n + 1);
  CHECK_NOTHROW(plan_case({.n_q = 1, .n_k = 2 * n, .d_v = 3, .offset = n}).plan(of_curve));  // causal
}

}  // namespace nprf::test::cuda_plan_attention_plan_smooth
