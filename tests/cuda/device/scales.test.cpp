// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/scales.cuh"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
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

namespace {

template <int>
__global__ void scale_kernel(const float* largest, int count, float* scales) {
  cuda::start_kernel();
  for (int k = 0; k < count; ++k) scales[k] = cuda::scale_to_half(largest[k]);
}

std::vector<float> scales_of(const std::vector<float>& largest) {
  const DeviceArray<float> x(largest), y(largest.size());
  cuda::launch("test", scale_kernel<0>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr, x.data(),
               static_cast<int>(largest.size()), y.data());
  return y.fetch();
}

bool is_power_of_two(float x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5f;
}

}  // namespace

TEST_CASE("scales to half are powers of two that take numbers to the top of the range", "[cuda]") {
  std::vector<float> largest;
  for (int e = -99; e < 126; e += 5)
    for (const float x : {1.0f, 1.5f, 1.999f}) largest.push_back(std::ldexp(x, e));
  const std::vector<float> scales = scales_of(largest);
  for (std::size_t k = 0; k < scales.size(); ++k) {
    INFO("largest " << largest[k] << ", scale " << scales[k]);
    CHECK(is_power_of_two(scales[k]));
    CHECK(scales[k] * largest[k] >= cuda::largest_scaled / 2);
    CHECK(scales[k] * largest[k] < cuda::largest_scaled);
  }
}

TEST_CASE("scales to half of other numbers are finite powers of two", "[cuda]") {
  using Limits = std::numeric_limits<float>;
  for (const float scale :
       scales_of({0, Limits::denorm_min(), Limits::min(), Limits::max(), Limits::infinity(), Limits::quiet_NaN()}))
    CHECK((std::isfinite(scale) && is_power_of_two(scale)));
  CHECK(scales_of({0})[0] == 0x1p114f);
}

TEST_CASE("features below 4 fit half", "[cuda]") {
  CHECK(cuda::feature_scale<__half> * 3.9f < 65504);
  CHECK(cuda::feature_scale<__nv_bfloat16> == 1);
  CHECK(cuda::feature_scale<float> == 1);
}

}  // namespace nprf::test::cuda_device_scales
