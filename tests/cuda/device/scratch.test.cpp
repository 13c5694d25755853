// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/scratch.hpp"

#include <cstddef>

#include "support/catch.hpp"

namespace nprf::test::cuda_device_scratch {

TEST_CASE("scratch arrays lie one behind the other, aligned, and are counted without memory", "[cuda]") {
  alignas(256) std::byte memory[4096];
  cuda::Scratch count, scratch(memory);
  const auto take = [&]<class T>(T, auto... sizes) {
    CHECK(count.take<T>(sizes...) == nullptr);
    T* at = scratch.take<T>(sizes...);
    CHECK(scratch.bytes() == count.bytes());
    return reinterpret_cast<std::byte*>(at) - memory;
  };
  CHECK(take(char(), 1) == 0);
  CHECK(take(double(), 4, std::size_t{8}) == 256);  // as many bytes as alignment has
  CHECK(take(float(), 5, 13L) == 512);              // one more than those
  CHECK(take(int(), 3, 0) == 1024);
  CHECK(take(int(), 1) == 1024);
  CHECK(scratch.bytes() == 1280);
}

TEST_CASE("scratch arrays that are not in use at one time share their place", "[cuda]") {
  alignas(256) std::byte memory[4096];
  cuda::Scratch scratch(memory);
  scratch.take<char>(300);
  const auto take = [&](std::ptrdiff_t bytes) {
    return [&, bytes](cuda::Scratch& own) {
      CHECK(own.take<std::byte>(1) - memory == 512);
      CHECK(own.take<std::byte>(bytes) - memory == 768);
    };
  };
  scratch.overlap(take(10), take(1000), take(256));
  CHECK(scratch.bytes() == 768 + 1024);
  CHECK(scratch.take<std::byte>(1) - memory == 768 + 1024);
  scratch.overlap();
  CHECK(scratch.bytes() == 768 + 1024 + 256);
}

}  // namespace nprf::test::cuda_device_scratch
