// SPDX-License-Identifier: MIT
#include "nprf/feature_map/normal.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>
#include <vector>

#include "feature_map/statistics.hpp"
#include "support/catch.hpp"

namespace nprf::test::feature_map_normal {

namespace {

std::vector<double> draw(NormalDeviates normal, std::size_t n) {
  std::vector<double> x(n);
  std::generate(x.begin(), x.end(), [&] { return normal(); });
  return x;
}

// the correlation of x[i] and y[i + lag], which have mean 0 and variance 1, in standard errors
double correlation_sigmas(const std::vector<double>& x, const std::vector<double>& y, std::size_t lag = 0) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < x.size(); ++i) sum += x[i] * y[i + lag];
  return std::abs(sum) / std::sqrt(static_cast<double>(x.size() - lag));
}

// (x^2 - 1) / sqrt(2), which also has mean 0 and variance 1
std::vector<double> squares(std::vector<double> x) {
  for (double& t : x) t = (t * t - 1) / std::numbers::sqrt2;
  return x;
}

// checks the two deviates that Box and Muller's method makes from the upper 53 bits of two 64-bit words
void check_pair(NormalDeviates normal, std::uint64_t radius_word, std::uint64_t angle_word) {
  const double u = static_cast<double>(radius_word >> 11) / 9007199254740992.0;
  const double v = static_cast<double>(angle_word >> 11) / 9007199254740992.0;
  const double radius = std::sqrt(-2 * std::log1p(-u)), angle = 2 * std::numbers::pi * v;
  const double tolerance = 1e-15 * (1 + radius);  // 4 eps, relative to the deviate and to 1 - u
  CHECK(std::abs(normal() - radius * std::cos(angle)) <= tolerance);
  CHECK(std::abs(normal() - radius * std::sin(angle)) <= tolerance);
}

std::uint64_t joined(std::uint32_t high, std::uint32_t low) { return (std::uint64_t{high} << 32) | low; }

}  // namespace

TEST_CASE("the first deviates come from the published words of Philox", "[feature_map]") {
  check_pair(NormalDeviates(0), 0x6627e8d5e169c58d, 0xbc57ac4c9b00dbd8);
}

TEST_CASE("the counter of the deviates is block and stream, and the key the seed, low words first", "[feature_map]") {
  for (const std::uint64_t seed : {std::uint64_t{7}, std::uint64_t{0x123456789abcdef0}})
    for (const std::uint64_t stream : {std::uint64_t{3}, std::uint64_t{0xfedcba9876543210}}) {
      NormalDeviates normal(seed, stream);
      for (std::uint32_t block = 0; block < 3; ++block) {
        const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffff); };
        const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x / 4294967296); };
        const Philox::Words w = Philox::block({block, 0, low(stream), high(stream)}, {low(seed), high(seed)});
        check_pair(normal, joined(w[0], w[1]), joined(w[2], w[3]));
        normal();
        normal();
      }
    }
}

TEST_CASE("equal seeds and streams give equal deviates", "[feature_map]") {
  CHECK(draw(NormalDeviates(5, 2), 1001) == draw(NormalDeviates(5, 2), 1001));
  CHECK(draw(NormalDeviates(5), 100) == draw(NormalDeviates(5, 0), 100));
}

TEST_CASE("deviates of different seeds and streams differ", "[feature_map]") {
  std::set<double> different;
  constexpr std::size_t n = 2000;
  constexpr std::uint64_t high = std::uint64_t{1} << 32;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, high})
    for (const std::uint64_t stream : {std::uint64_t{0}, std::uint64_t{1}, high})
      for (const double x : draw(NormalDeviates(seed, stream), n)) different.insert(x);
  CHECK(different.size() == 9 * n);
}

TEST_CASE("the deviates have the moments of N(0,1)", "[feature_map]") {
  for (const std::uint64_t seed : {1u, 2u}) {
    const std::vector<double> x = draw(NormalDeviates(seed), 200000);
    const double n = static_cast<double>(x.size());
    double moment[5] = {};
    for (const double t : x)
      for (int power = 1; power <= 4; ++power) moment[power] += std::pow(t, power) / n;
    // the variances of t, t^2, t^3 and t^4 for a Gaussian t are 1, 2, 15 and 96
    CHECK(std::abs(moment[1]) <= five_sigma * std::sqrt(1 / n));
    CHECK(std::abs(moment[2] - 1) <= five_sigma * std::sqrt(2 / n));
    CHECK(std::abs(moment[3]) <= five_sigma * std::sqrt(15 / n));
    CHECK(std::abs(moment[4] - 3) <= five_sigma * std::sqrt(96 / n));
  }
}

TEST_CASE("the numbers of deviates beyond 0.5, 1, 2 and 3 are those of N(0,1)", "[feature_map]") {
  const std::vector<double> x = draw(NormalDeviates(3), 200000);
  const double n = static_cast<double>(x.size());
  for (const double bound : {0.5, 1.0, 2.0, 3.0}) {
    const double p = std::erfc(bound / std::numbers::sqrt2) / 2, sigma = std::sqrt(n * p * (1 - p));
    const auto above = std::count_if(x.begin(), x.end(), [&](double t) { return t > bound; });
    const auto below = std::count_if(x.begin(), x.end(), [&](double t) { return t < -bound; });
    CHECK(std::abs(static_cast<double>(above) - n * p) <= five_sigma * sigma);
    CHECK(std::abs(static_cast<double>(below) - n * p) <= five_sigma * sigma);
  }
}

TEST_CASE("deviates, streams and seeds are independent of each other", "[feature_map]") {
  constexpr std::size_t n = 100000;
  const std::vector<double> x = draw(NormalDeviates(1), n);
  for (const std::size_t lag : {1u, 2u, 3u, 4u}) {
    CHECK(correlation_sigmas(x, x, lag) <= five_sigma);
    CHECK(correlation_sigmas(squares(x), squares(x), lag) <= five_sigma);
  }
  for (const std::vector<double>& y :
       {draw(NormalDeviates(1, 1), n), draw(NormalDeviates(2), n), draw(NormalDeviates(0, 1), n)})
    for (const std::size_t lag : {0u, 1u, 2u}) {
      CHECK(correlation_sigmas(x, y, lag) <= five_sigma);
      CHECK(correlation_sigmas(squares(x), squares(y), lag) <= five_sigma);
    }
}

TEST_CASE("a matrix of deviates is filled row by row with the next deviates", "[feature_map]") {
  const std::vector<double> x = draw(NormalDeviates(9), 1 + 3 * 5 + 2 * 2);
  NormalDeviates normal(9);
  CHECK(normal() == x[0]);
  const Matrix<double> a = normal.matrix(3, 5), b = normal.matrix(2, 2);
  REQUIRE(a.rows() == 3);
  REQUIRE(a.cols() == 5);
  for (Index i = 0; i < 3; ++i)
    for (Index j = 0; j < 5; ++j) CHECK(a(i, j) == x[static_cast<std::size_t>(1 + 5 * i + j)]);
  CHECK(b(1, 0) == x[18]);
  CHECK(normal.matrix(0, 4).size() == 0);
}

}  // namespace nprf::test::feature_map_normal
