// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/token_places.cuh"

#include <algorithm>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"

namespace nprf::test::cuda_position_token_places_count_below {

namespace {

template <int range>
__global__ void count_below_kernel(const int* list, int count, int* found) {
  cuda::start_kernel();
  for (int x = 0; x < range; ++x) found[x] = cuda::count_below(list, count, x);
}

}  // namespace

TEST_CASE("entries of an ascending list below a number are those of std::lower_bound", "[cuda]") {
  constexpr int range = 12;
  const std::vector<int> list{1, 2, 5, 6, 10};
  const DeviceArray<int> on_device(list), found(std::size_t{range});
  for (int count = 0; count <= 5; ++count) {
    cuda::launch("test", count_below_kernel<range>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr, on_device.data(), count,
                 found.data());
    const std::vector<int> got = found.fetch();
    for (int x = 0; x < range; ++x)
      CHECK(got[static_cast<std::size_t>(x)] == std::lower_bound(list.begin(), list.begin() + count, x) - list.begin());
  }
}

}  // namespace nprf::test::cuda_position_token_places_count_below
