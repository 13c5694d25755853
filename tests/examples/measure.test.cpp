// SPDX-License-Identifier: MIT
#include "examples/support/measure.hpp"

#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "support/catch.hpp"

namespace nprf::test::examples_measure {

TEST_CASE("the examples' times are those of the processor, not those on the wall", "[examples]") {
  constexpr double asleep = 0.005;
  const auto sleep = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(asleep)); };
  CHECK(demo::processor_seconds(sleep) < asleep / 2);
  CHECK(demo::median_seconds(sleep, 0.01) < asleep / 2);
  const auto work = [] {
    const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 100;
    while (std::clock() < end) {
    }
  };
  CHECK(demo::processor_seconds(work) >= 0.01);
  CHECK(demo::median_seconds(work, 0.02) >= 0.01);
}

TEST_CASE("the examples' times are those of one thread", "[examples]") {
  const Index before = num_threads();
  set_num_threads(3);
  Index during = 0;
  demo::median_seconds([&] { during = num_threads(); }, 1e-6);
  CHECK(during == 1);
  CHECK(num_threads() == 3);
  CHECK_THROWS(demo::median_seconds([] { throw std::runtime_error("work"); }));
  CHECK(num_threads() == 3);
  set_num_threads(before);
}

}  // namespace nprf::test::examples_measure
