// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/no_backward.cuh"

#include <cstddef>

#include "nprf/attention/attention.hpp"
#include "nprf/cuda/plan/cost_model.cuh"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/position.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_plan_no_backward {

TEST_CASE("a program without gradients refuses plans with gradients", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  const cuda::DeviceModel model(cuda::model_of(Attention(orf<float>(4, 5, 7), NoPosition<float>())),
                                {.n_q = 8, .n_k = 8, .d_v = 3}, false, nullptr);
  const std::size_t slab_bytes = 1 << 20;
  const cuda::Product<float> product(device, cuda::Engine::direct, model.product_shape(), model.toeplitz(), slab_bytes,
                                     cuda::feature_type_of<float>(device, model, cuda::Engine::direct));
  REQUIRE_THROWS_WITH(cuda::NoBackward<float>(device, model, product, slab_bytes, false),
                      "gradients: expected a program compiled with NPRF_CUDA_GRADIENTS=1, got 0");
}

}  // namespace nprf::test::cuda_plan_no_backward
