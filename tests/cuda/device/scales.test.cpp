// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/scales.cuh"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::cuda_device_scales {

TEST_CASE("power_of_two_scale returns a power of two above the number, and its inverse", "[cuda]") {
  for (float x = 0x1p-126f; x < 0x1p125f; x *= 1.7f)
    for (const float y : {x, -x}) {
      const cuda::PowerOfTwoScale scale = cuda::power_of_two_scale(cuda::magnitude(y));
      int exponent = 0;
      CHECK(std::frexp(scale.value, &exponent) == 0.5f);
      CHECK(scale.value * scale.inverse == 1);
      CHECK(std::abs(y) < scale.value);
      CHECK(std::abs(y) >= scale.value / 2);
    }
  for (const float x : {0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()}) {
    const cuda::PowerOfTwoScale scale = cuda::power_of_two_scale(cuda::magnitude(x));
    CHECK(std::isnormal(scale.value));
    CHECK(scale.value * scale.inverse == 1);
    CHECK(std::isfinite(x * scale.inverse));
  }
}

TEST_CASE("infinity and NaN have magnitudes above all finite numbers, and the scale 1", "[cuda]") {
  CHECK(cuda::magnitude(std::numeric_limits<float>::max()) < cuda::infinite_magnitude);
  for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(cuda::magnitude(x) >= cuda::infinite_magnitude);
    CHECK(cuda::magnitude(-x) >= cuda::infinite_magnitude);
    CHECK(cuda::power_of_two_scale(cuda::magnitude(x)).value == 1);
    CHECK(cuda::power_of_two_scale(cuda::magnitude(x)).inverse == 1);
  }
}

}  // namespace nprf::test::cuda_device_scales
