// SPDX-License-Identifier: MIT
#include "nprf/cuda/error_bound/signal_norms.cuh"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_error_bound_weight_norms {

TEST_CASE("norms and longest nonzero run of weights agree with their definition", "[cuda]") {
  std::mt19937_64 draw(1);
  for (const int size : {0, 1, 2, 255, 256, 257, 1000, 3001})
    // a weight is zero with probability 1 / zeros; 0: never
    for (const unsigned zeros : {0u, 1u, 2u, 5u, 60u, 1000u}) {
      std::vector<float> c(static_cast<std::size_t>(size));
      for (float& x : c) x = zeros > 0 && draw() % zeros == 0 ? 0.0f : static_cast<float>(draw() % 1000 + 1) / 1000;
      const DeviceArray<float> weights(c);
      const DeviceArray<cuda::WeightNorms> out(1);
      cuda::queue_weight_norms({{weights.data(), 0, size, -7, 1, -7, size - 8}, out.data()}, 1, nullptr);
      const cuda::WeightNorms got = out.fetch()[0];
      double one = 0, square = 0, max = 0;
      int longest_run = 0, run = 0;
      for (const float x : c) {
        const double y = static_cast<double>(x);
        one += y, square += y * y, max = std::max(max, y);
        run = x == 0 ? 0 : run + 1;
        longest_run = std::max(longest_run, run);
      }
      INFO(size << " weights, zeros " << zeros);
      CHECK(std::abs(got.sums.one - one) <= 1e-12 * one);
      CHECK(std::abs(got.sums.square - square) <= 1e-12 * square);
      CHECK(got.sums.max == max);
      CHECK(got.size == size);
      CHECK(got.longest_run == longest_run);
      const auto first = c.begin() + got.longest_run_first;
      CHECK(std::count(first, first + got.longest_run, 0.0f) == 0);
    }
}

}  // namespace nprf::test::cuda_error_bound_weight_norms
