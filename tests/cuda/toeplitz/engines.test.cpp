// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/engines.cuh"

#include <cmath>
#include <type_traits>

#include "nprf/cuda/device/runtime.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_engines {

TEST_CASE("each engine that a user can choose is in the list once", "[cuda]") {
  int engines = 0;
  for (int number = 0; name(static_cast<cuda::Engine>(number)) != "unknown"; ++number) {
    const auto engine = static_cast<cuda::Engine>(number);
    int found = 0;
    cuda::EngineList<float>::for_each([&]<class E>(std::type_identity<E>) { found += E::name == engine; });
    INFO(name(engine));
    CHECK(found == (engine == cuda::Engine::automatic ? 0 : 1));
    engines += found;
  }
  CHECK(engines == 5);
}

TEST_CASE("the properties of an engine are those of its class", "[cuda]") {
  CHECK(cuda::properties_of(cuda::Engine::banded).has_states);
  CHECK(!cuda::properties_of(cuda::Engine::direct).has_states);
  CHECK(cuda::properties_of(cuda::Engine::direct).is_tiled);
  CHECK(!cuda::properties_of(cuda::Engine::cufft).is_tiled);
  CHECK(cuda::properties_of(cuda::Engine::cufft).supports_grid);
  CHECK(!cuda::properties_of(cuda::Engine::fused).supports_grid);
  CHECK(cuda::properties_of(cuda::Engine::smooth).is_tiled);
  CHECK(!cuda::properties_of(cuda::Engine::smooth).has_states);
  CHECK(!cuda::properties_of(cuda::Engine::smooth).supports_grid);
}

TEST_CASE("the cost of FFTs in shared memory or in two passes is infinite beyond 2^20 tokens", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  const cuda::ToeplitzWeights weights{};
  const auto cost = [&](int n) {
    const cuda::ProductShape shape{1, 1, n, n, 16, 4};
    return cuda::FusedEngine::cost({device, shape, weights, false, false});
  };
  for (const int n : {1000, 1 << 17, 1 << 20}) {
    CHECK(std::isfinite(cost(n).time()));
    CHECK(cost(n).fft_length >= 2 * n);
  }
  CHECK(std::isinf(cost((1 << 20) + 1).time()));
}

}  // namespace nprf::test::cuda_toeplitz_engines
