// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/cost_model.cuh"

#include <initializer_list>
#include <limits>

#include "cuda/plan_case.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_plan_cost_model {

namespace {

constexpr Index n = 4096;

// one head for each range of biases, which rise linearly over all lags, up and down by `roughness`
cuda::AttentionModel rising(std::initializer_list<float> spreads, float roughness = 0.05f) {
  cuda::AttentionModel model = cuda::model_of(Attention(orf<float>(16, 16, 7), NoPosition<float>()));
  model.positions.clear();
  for (const float spread : spreads) {
    Vector<float> table = Vector<float>::LinSpaced(2 * n - 1, 0, spread);
    for (Index k = 0; k < table.size(); k += 2) table[k] += roughness;
    model.positions.push_back(cuda::model_of(RelativePosition<float>(table)));
  }
  return model;
}

template <class S = float>
cuda::Engine engine(const cuda::AttentionModel& model, const cuda::Device& device, bool gradients = false,
                    double tolerance = 1e-4, bool gradients_on_tensor_cores = false) {
  const cuda::PlanShape shape{.heads = static_cast<Index>(model.positions.size()), .n_q = n, .n_k = n, .d_v = 64};
  return cuda::cheapest<S>(device,
                           cuda::DeviceModel(model, shape, {.gradients = gradients, .tolerance = tolerance}, nullptr),
                           gradients, tolerance, gradients_on_tensor_cores);
}

}  // namespace

TEST_CASE("rows that would fail the error bound raise the cost of FFTs, unless the tolerance is infinite", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  constexpr double infinite = std::numeric_limits<double>::infinity();
  CHECK(engine(rising({60}), device) == cuda::Engine::direct);
  CHECK(engine(rising({60}), device, false, infinite) == cuda::Engine::fused);
  CHECK(engine(rising({9}), device, false, 1e-6) == cuda::Engine::direct);
  // uses the mean share of failing rows over the heads
  CHECK(engine(rising({60, 60, 60}), device) == cuda::Engine::direct);
  CHECK(engine(rising({1, 60, 60}), device) == cuda::Engine::fused);
}

TEST_CASE("with gradients too, failing rows raise the cost of FFTs", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  CHECK(engine(rising({60}), device, true) == cuda::Engine::direct);
  CHECK(engine(rising({1, 1, 1, 60}), device, true) == cuda::Engine::fused);
}

TEST_CASE("the cost model uses tensor cores if available, and for gradients if the plan does", "[cuda]") {
  cuda::Device device = cuda::Device::current();
  cuda::AttentionModel far_features = rising({1});  // that do not fit half
  far_features.radius = 0;
  device.capability = 70;
  CHECK(engine<__half>(rising({1}), device) == cuda::Engine::direct);
  CHECK(engine<__half>(rising({1}), device, true) == cuda::Engine::fused);
  CHECK(engine<__half>(far_features, device) == cuda::Engine::fused);
  CHECK(engine<__nv_bfloat16>(rising({1}), device) == cuda::Engine::fused);
  device.capability = 90;
  CHECK(engine<__half>(rising({1}), device, true) == cuda::Engine::fused);
  CHECK(engine<float>(rising({1}), device, true, 1e-4, true) == cuda::Engine::fused);
  if (!can_multiply<__nv_bfloat16>()) return;
  CHECK(engine<__half>(rising({1}), device, true, 1e-4, true) == cuda::Engine::direct);
  CHECK(engine<__half>(far_features, device) == cuda::Engine::direct);
  CHECK(engine<__half>(far_features, device, true, 1e-4, true) == cuda::Engine::fused);
  CHECK(engine<__nv_bfloat16>(rising({1}), device) == cuda::Engine::direct);
}

TEST_CASE("smooth biases are chosen to be computed as such if the weights may change", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  cuda::AttentionModel model = rising({1, 9}, 0);
  CHECK(engine(model, device) == cuda::Engine::smooth);
  CHECK(engine(rising({1, 9}), device) != cuda::Engine::smooth);
  CHECK(engine(model, device, true) != cuda::Engine::smooth);
  CHECK(engine(model, device, false, 0) != cuda::Engine::smooth);
  const cuda::DeviceModel often_set(model, {.heads = 2, .n_q = n, .n_k = n, .d_v = 64}, {.sets_parameters = true},
                                    nullptr);
  CHECK(cuda::cheapest<float>(device, often_set, false, 1e-4) != cuda::Engine::smooth);
  for (cuda::FeatureModel& each : model.features) each = cuda::model_of(trf<float>(16, 8, 7));  // of both signs
  CHECK(engine(model, device) != cuda::Engine::smooth);
}

}  // namespace nprf::test::cuda_plan_cost_model
