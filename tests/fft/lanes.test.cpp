// SPDX-License-Identifier: MIT
#include "nprf/fft/lanes.hpp"

#include <cmath>
#include <vector>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"

namespace nprf::test::fft_lanes {

namespace {

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
