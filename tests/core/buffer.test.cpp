// SPDX-License-Identifier: MIT
#include "nprf/core/buffer.hpp"

#include <complex>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_buffer {

static_assert(!std::is_copy_constructible_v<Buffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<Buffer<float>>);

TEMPLATE_TEST_CASE("a buffer is aligned to 64 bytes, and all of it can be written", "[core]", char, float, double,
                   std::complex<double>) {
  std::vector<Buffer<TestType>> buffers;  // kept, so that all have different addresses
  for (Index size = 1; size <= 100; ++size) {
    Buffer<TestType>& buffer = buffers.emplace_back(size);
    REQUIRE(buffer.data() != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    for (Index i = 0; i < size; ++i) buffer.data()[i] = TestType(1);
  }
  Index ones = 0;
  for (Index size = 1; size <= 100; ++size)
    for (Index i = 0; i < size; ++i)
      ones += std::as_const(buffers[static_cast<std::size_t>(size - 1)]).data()[i] == TestType(1) ? 1 : 0;
  CHECK(ones == 5050);
}

TEST_CASE("a buffer of several large pages can be written from end to end", "[core]") {
  for (const Index size : {(2 << 20) - 1, (2 << 20) + 1, (4 << 20) - 1, (9 << 20) + 12345}) {
    Buffer<char> buffer(size);
    for (Index i = 0; i < size; i += 1000) buffer.data()[i] = static_cast<char>(i % 127);
    buffer.data()[size - 1] = 1;
    Index same = 0;
    for (Index i = 0; i < size - 1; i += 1000) same += buffer.data()[i] == static_cast<char>(i % 127) ? 1 : 0;
    CHECK(same == (size - 2) / 1000 + 1);
  }
}

TEST_CASE("a moved buffer keeps the address of its data", "[core]") {
  Buffer<double> first(8);
  double* const data = first.data();
  Buffer<double> second = std::move(first);
  CHECK(second.data() == data);
  CHECK(first.data() == nullptr);
  CHECK(Buffer<double>().data() == nullptr);
  CHECK_NOTHROW(Buffer<double>(0));
}

TEST_CASE("a buffer rejects a size that overflows", "[core]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  CHECK_THROWS_AS(Buffer<double>(most), std::length_error);
  CHECK_THROWS_AS(Buffer<double>(most / 4 + 1), std::length_error);
  CHECK_THROWS_AS(Buffer<std::complex<double>>(most / 8 + 1), std::length_error);
  CHECK_THROWS_AS(Buffer<char>(-1), std::length_error);
  CHECK_THROWS_AS(Buffer<double>(std::numeric_limits<Index>::min()), std::length_error);
}

}  // namespace nprf::test::core_buffer
