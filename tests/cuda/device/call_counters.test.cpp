// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/call_counters.cuh"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::cuda_device_call_counters {

TEST_CASE("a unit is a power of two above a number, with an inverse", "[cuda]") {
  for (float x = 0x1p-126f; x < 0x1p125f; x *= 1.7f)
    for (const float y : {x, -x}) {
      const cuda::Unit unit = cuda::unit_of(cuda::magnitude(y));
      int exponent = 0;
      CHECK(std::frexp(unit.value, &exponent) == 0.5f);
      CHECK(unit.value * unit.inverse == 1);
      CHECK(std::abs(y) < unit.value);
      CHECK(std::abs(y) >= unit.value / 2);
    }
  for (const float x : {0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()}) {
    const cuda::Unit unit = cuda::unit_of(cuda::magnitude(x));
    CHECK(std::isnormal(unit.value));
    CHECK(unit.value * unit.inverse == 1);
    CHECK(std::isfinite(x * unit.inverse));
  }
}

TEST_CASE("what is no number is above all magnitudes, and has no unit", "[cuda]") {
  CHECK(cuda::magnitude(std::numeric_limits<float>::max()) < cuda::infinite_magnitude);
  for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(cuda::magnitude(x) >= cuda::infinite_magnitude);
    CHECK(cuda::magnitude(-x) >= cuda::infinite_magnitude);
    CHECK(cuda::unit_of(cuda::magnitude(x)).value == 1);
    CHECK(cuda::unit_of(cuda::magnitude(x)).inverse == 1);
  }
}

TEST_CASE("denominators that have lost their digits are told", "[cuda]") {
  for (const bool positive : {true, false}) {
    CHECK(cuda::is_sound(1, positive));
    CHECK(cuda::is_sound(0x1p-63f, positive));
    CHECK(!cuda::is_sound(0x1p-64f, positive));
    CHECK(!cuda::is_sound(0, positive));
    CHECK(cuda::is_sound(-1, positive) == !positive);
    CHECK(!cuda::is_sound(std::numeric_limits<float>::infinity(), positive));
    CHECK(!cuda::is_sound(std::numeric_limits<float>::quiet_NaN(), positive));
  }
}

}  // namespace nprf::test::cuda_device_call_counters
