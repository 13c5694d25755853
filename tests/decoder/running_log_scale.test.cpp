// SPDX-License-Identifier: MIT
#include "nprf/decoder/running_log_scale.hpp"

#include <cmath>
#include <limits>
#include <numbers>

#include "support/catch.hpp"

namespace nprf::test::decoder_running_log_scale {

constexpr double eps = std::numeric_limits<double>::epsilon();

TEST_CASE("running log-scale: the first token sets it", "[decoder]") {
  RunningLogScale scale;
  CHECK(scale.is_empty());
  scale.shift(-3, 0);
  CHECK(scale.is_empty());
  CHECK(scale.raise(12.5) == 0);
  CHECK_FALSE(scale.is_empty());
  CHECK(scale.sum() == 12.5);
  CHECK(scale.relative(11) == -1.5);
}

TEST_CASE("running log-scale: the errors of many shifts do not add up", "[decoder]") {
  constexpr int n = 1000000;
  RunningLogScale scale;
  scale.raise(0);
  for (int j = 0; j < n; ++j) scale.shift(-0.1, 0);
  CHECK(std::abs(scale.sum() + n * 0.1) <= eps * n * 0.1);
  CHECK(std::abs(scale.relative(-n * 0.1)) <= eps * n * 0.1);
}

TEST_CASE("running log-scale: it is raised by powers of two", "[decoder]") {
  for (const double to : {1e-9, 0.5, 11.0, 12.0, 300.0, 1e6}) {
    RunningLogScale scale;
    scale.raise(0);
    const double exponent = scale.raise(to);
    INFO("to " << to);
    CHECK(exponent > 0);
    CHECK(std::fmod(exponent, 16) == 0);
    CHECK(scale.sum() >= to * (1 - eps));
    CHECK(scale.sum() < to + 16 * std::numbers::ln2 + eps * to);
    CHECK(std::abs(scale.sum() - exponent * std::numbers::ln2) <= eps * scale.sum());
  }
}

}  // namespace nprf::test::decoder_running_log_scale
