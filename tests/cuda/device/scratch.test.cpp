// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/scratch.hpp"

#include <cstddef>

#include "support/catch.hpp"

namespace nprf::test::cuda_device_scratch {

TEST_CASE("scratch arrays are consecutive and aligned, and are counted without memory", "[cuda]") {
  alignas(256) std::byte memory[4096];
  cuda::Scratch count, scratch(memory);
  const auto take = [&]<class T>(T, auto... sizes) {
    CHECK(count.take<T>(sizes...) == nullptr);
    T* at = scratch.take<T>(sizes...);
    CHECK(scratch.bytes() == count.bytes());
    return reinterpret_cast<std::byte*>(at) - memory;
  };
  CHECK(take(char(), 1) == 0);
  CHECK(take(double(), 4, std::size_t{8}) == 256);  // exactly 256 bytes
  CHECK(take(float(), 5, 13L) == 512);              // 260 bytes, so that 512 are reserved
  CHECK(take(int(), 3, 0) == 1024);
  CHECK(take(int(), 1) == 1024);
  CHECK(scratch.bytes() == 1280);
}

TEST_CASE("overlapping scratch arrays start at the same place", "[cuda]") {
  alignas(256) std::byte memory[4096];
  cuda::Scratch scratch(memory);
  scratch.take<char>(300);
  const auto take = [&](std::ptrdiff_t bytes) {
    return [&, bytes](cuda::Scratch& area) {
      CHECK(area.take<std::byte>(1) - memory == 512);
      CHECK(area.take<std::byte>(bytes) - memory == 768);
    };
  };
  scratch.overlap(take(10), take(1000), take(256));
  CHECK(scratch.bytes() == 768 + 1024);
  CHECK(scratch.take<std::byte>(1) - memory == 768 + 1024);
  scratch.overlap();
  CHECK(scratch.bytes() == 768 + 1024 + 256);
}

}  // namespace nprf::test::cuda_device_scratch
