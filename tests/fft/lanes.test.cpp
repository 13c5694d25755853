// SPDX-License-Identifier: MIT
#include "nprf/fft/lanes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"

namespace nprf::test::fft_lanes {

namespace {

// 1, 2, ..., n
template <class T>
std::vector<T> counted(Index n) {
  std::vector<T> x;
  for (Index k = 0; k < n; ++k) x.push_back(static_cast<T>(k + 1));
  return x;
}

// angles of all kinds: simple fractions, near quarter turns, tiny ones, and ones of many turns
std::vector<fft::Turn> turns() {
  std::vector<fft::Turn> all{{0, 1}, {1, 4}, {1, 2}, {3, 4}, {1, 1}, {-1, 4}, {-1, 2}, {-7, 4}, {9, 8}, {1000001, 4}};
  for (Index part = -50; part <= 50; ++part) all.push_back({part, 48}), all.push_back({part, 45});
  for (Index whole = 64; whole < Index{1} << 40; whole *= 16)
    for (const Index quarter : {-1, 0, 1, 2, 3})
      for (const Index beside : {-1, 0, 1}) all.push_back({quarter * (whole / 4) + beside, whole});
  return all;
}

}  // namespace

static_assert(sizeof(fft::Lanes<float>) == sizeof(fft::Lanes<double>), "both fill a register");
static_assert(sizeof(fft::Lanes<float>) == fft::lane_count<float> * sizeof(float));
static_assert(fft::lane_count<float> == 2 * fft::lane_count<double>);
static_assert(fft::lane_count<double> >= 2);
static_assert(fft::vector_registers >= 16);

TEMPLATE_TEST_CASE("load_lanes accepts any address and reads only the requested lanes", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (Index from = 0; from < W; ++from)
    for (Index count = -1; count <= W + 2; ++count) {
      // the vector ends after the last requested lane
      const Index most = std::clamp<Index>(count, 0, W);
      const std::vector<T> x = counted<T>(from + most);
      const fft::Lanes<T> lanes = fft::load_lanes(x.data() + from, count);
      INFO(count << " from " << from);
      for (Index l = 0; l < W; ++l) CHECK(lanes[l] == (l < most ? static_cast<T>(from + l + 1) : T(0)));
    }
  const std::vector<T> x = counted<T>(W);
  const fft::Lanes<T> all = fft::load_lanes(x.data());
  for (Index l = 0; l < W; ++l) CHECK(all[l] == static_cast<T>(l + 1));
  CHECK(fft::load_lanes(static_cast<const T*>(nullptr), 0)[0] == 0);
}

TEMPLATE_TEST_CASE("store_lanes accepts any address and writes only the requested lanes", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  const std::vector<T> values = counted<T>(W);
  const fft::Lanes<T> lanes = fft::load_lanes(values.data());
  for (Index from = 0; from < W; ++from)
    for (Index count = -1; count <= W + 2; ++count) {
      const Index most = std::clamp<Index>(count, 0, W);
      std::vector<T> x(static_cast<std::size_t>(from + W + 3), T(-17));
      fft::store_lanes(lanes, x.data() + from, count);
      INFO(count << " from " << from);
      for (Index k = 0; k < from + W + 3; ++k)
        CHECK(x[static_cast<std::size_t>(k)] == (k >= from && k < from + most ? static_cast<T>(k - from + 1) : T(-17)));
      // memory may end after the last requested lane
      std::vector<T> exact(static_cast<std::size_t>(from + most));
      fft::store_lanes(lanes, exact.data() + from, count);
    }
  std::vector<T> x(static_cast<std::size_t>(W));
  fft::store_lanes(lanes, x.data());
  CHECK(x == values);
}

TEMPLATE_TEST_CASE("loading and storing lanes preserves all bits", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  constexpr Index W = fft::lane_count<T>;
  for (const T special : {nan_of<T>, -T(0), Limits::denorm_min(), -Limits::infinity(), Limits::max()})
    for (Index count = 1; count <= W; ++count) {
      const std::vector<T> x(static_cast<std::size_t>(count), special);
      std::vector<T> y(static_cast<std::size_t>(count));
      fft::store_lanes(fft::load_lanes(x.data(), count), y.data(), count);
      CHECK(std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
    }
}

TEMPLATE_TEST_CASE("each sum of sum_lanes has every lane of its register once and no lane of another", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (Index k = 0; k < W; ++k)
    for (Index l = 0; l < W; ++l) {
      fft::Lanes<T> x[W] = {};
      x[k][l] = 1;
      const fft::Lanes<T> impulse = fft::sum_lanes<T>(x);
      CHECK(fft::sum_lanes<T>(x[k]) == 1);
      x[k][l] = nan_of<T>;
      const fft::Lanes<T> sums = fft::sum_lanes<T>(x);
      CHECK(std::isnan(fft::sum_lanes<T>(x[k])));
      for (Index m = 0; m < W; ++m) {
        INFO("lane " << l << " of register " << k << ", sum " << m);
        CHECK(impulse[m] == (m == k ? T(1) : T(0)));
        CHECK((m == k ? std::isnan(sums[m]) : sums[m] == 0));
      }
    }
}

TEMPLATE_TEST_CASE("sum_lanes_of_half sums the lanes of half as many registers as lanes", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>, half = W / 2;
  if constexpr (W * static_cast<Index>(sizeof(T)) == 4 * 16) {  // registers of four blocks
    for (Index k = 0; k < half; ++k)
      for (Index l = 0; l < W; ++l) {
        fft::Lanes<T> x[half] = {};
        x[k][l] = 1;
        const fft::Lanes<T> impulse = fft::sum_lanes_of_half<T>(x);
        x[k][l] = nan_of<T>;
        const fft::Lanes<T> sums = fft::sum_lanes_of_half<T>(x);
        INFO("lane " << l << " of register " << k);
        for (Index m = 0; m < half; ++m) {
          CHECK(impulse[m] == (m == k ? T(1) : T(0)));
          CHECK((m == k ? std::isnan(sums[m]) : sums[m] == 0));
        }
      }
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {  // the rounding is that of sum_lanes
      const Matrix<T> values = normal<T>(half, W, seed);
      fft::Lanes<T> x[W] = {};
      for (Index k = 0; k < half; ++k) x[k] = fft::load_lanes(&values(k, 0));
      const fft::Lanes<T> sums = fft::sum_lanes_of_half<T>(x);
      for (Index k = 0; k < half; ++k) {
        const double exact = values.row(k).template cast<double>().sum();
        CHECK(std::abs(static_cast<double>(sums[k]) - exact) <=
              epsilon<T> * std::log2(2.0 * W) * values.row(k).cwiseAbs().sum());
      }
    }
  }
}

TEMPLATE_TEST_CASE("sums of lanes have at most log2(2 lanes) roundings", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Matrix<T> values = normal<T>(W, W, seed);
    fft::Lanes<T> x[W];
    for (Index k = 0; k < W; ++k) x[k] = fft::load_lanes(&values(k, 0));
    const fft::Lanes<T> sums = fft::sum_lanes<T>(x);
    for (Index k = 0; k < W; ++k) {
      const double exact = values.row(k).template cast<double>().sum();
      const double tolerance = epsilon<T> * std::log2(2.0 * W) * values.row(k).cwiseAbs().sum();
      CHECK(std::abs(static_cast<double>(sums[k]) - exact) <= tolerance);
      CHECK(std::abs(static_cast<double>(fft::sum_lanes<T>(x[k])) - exact) <= tolerance);
    }
  }
}

TEMPLATE_TEST_CASE("complex lanes are added, subtracted and multiplied lane by lane", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Buffer<fft::ComplexLanes<T>> x = normal_lanes<T>(3, 1);
  const fft::ComplexLanes<T> a = x.data()[0], b = x.data()[1];
  const T re = T(0.7), im = T(-1.3);
  for (Index l = 0; l < fft::lane_count<T>; ++l) {
    const Complex u = lane(a, l), v = lane(b, l), w{re, im};
    const double scale = epsilon<T> * static_cast<double>(std::abs(u) + std::abs(v));
    CHECK(static_cast<double>(std::abs(lane(a + b, l) - (u + v))) <= scale);
    CHECK(static_cast<double>(std::abs(lane(a - b, l) - (u - v))) <= scale);
    CHECK(static_cast<double>(std::abs(lane(times(a, re, im), l) - u * w)) <=
          2 * epsilon<T> * static_cast<double>(std::abs(u) * std::abs(w)));
  }
}

TEST_CASE("roots of unity are correct to one or two bits, for any number of turns", "[fft]") {
  for (const fft::Turn& turn : turns()) {
    const fft::UnitRoot w = fft::UnitRoot::of(turn);
    const Complex exact = unit_root(turn.part, turn.whole);
    INFO(turn.part << " / " << turn.whole);
    // relative to the real and the imaginary part separately; 1e-18 for the error of the reference's pi, 2^-64
    CHECK(std::abs(static_cast<double>(w.re - exact.real())) <=
          epsilon<double> * std::abs(static_cast<double>(exact.real())) + 1e-18);
    CHECK(std::abs(static_cast<double>(w.im - exact.imag())) <=
          epsilon<double> * std::abs(static_cast<double>(exact.imag())) + 1e-18);
  }
}

TEST_CASE("roots at multiples of a quarter turn are exact", "[fft]") {
  constexpr double re[] = {1, 0, -1, 0}, im[] = {0, 1, 0, -1};
  for (Index whole = 4; whole < Index{1} << 40; whole *= 12)
    for (Index quarters = -9; quarters <= 9; ++quarters) {
      const fft::UnitRoot w = fft::UnitRoot::of({quarters * (whole / 4), whole});
      INFO(quarters << " quarters of " << whole);
      CHECK(w.re == re[quarters & 3]);
      CHECK(w.im == im[quarters & 3]);
    }
}

TEST_CASE("a turn times an integer is exact, and equal angles have equal roots", "[fft]") {
  const fft::Turn turn = 5 * fft::Turn{3, 7};
  CHECK(turn.part == 15);
  CHECK(turn.whole == 7);
  for (Index part = -30; part <= 30; ++part) {
    const fft::UnitRoot a = fft::UnitRoot::of({part, 12}), b = fft::UnitRoot::of({5 * part, 60}),
                        c = fft::UnitRoot::of({part + 36, 12});
    CHECK(a.re == b.re);
    CHECK(a.im == b.im);
    CHECK(a.re == c.re);
    CHECK(a.im == c.im);
  }
}

}  // namespace nprf::test::fft_lanes
