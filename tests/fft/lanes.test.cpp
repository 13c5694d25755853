// SPDX-License-Identifier: MIT
#include "nprf/fft/lanes.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
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

// The largest error of (a, b) <- step(a, b, w) over all lanes and angles, in units of eps (|a| + |b|). The expected
// results are a + expected(b, w) and a - expected(b, w).
template <class T, class Step, class Expected>
double butterfly_error(Step&& step, Expected&& expected) {
  constexpr Index n = 20;
  const Buffer<fft::ComplexLanes<T>> all = normal_lanes<T>(2 * n, 1);
  double worst = 0;
  for (const fft::Turn& turn : turns()) {
    const fft::Rotation<T> w = fft::Rotation<T>::of(turn);
    const Complex exact = unit_root(turn.part, turn.whole);
    for (Index k = 0; k < n; ++k) {
      const fft::ComplexLanes<T> a = all.data()[2 * k], b = all.data()[2 * k + 1];
      fft::ComplexLanes<T> plus = a, minus = b;
      step(plus, minus, w);
      for (Index l = 0; l < fft::lane_count<T>; ++l) {
        const Complex difference = expected(lane(b, l), exact);
        const long double error = std::max(std::abs(lane(plus, l) - (lane(a, l) + difference)),
                                           std::abs(lane(minus, l) - (lane(a, l) - difference)));
        const auto ratio = static_cast<double>(error / (std::abs(lane(a, l)) + std::abs(lane(b, l))));
        if (!(ratio <= worst)) worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
      }
    }
  }
  return worst / epsilon<T>;
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

TEMPLATE_TEST_CASE("sum_lanes sums the lanes of each register into one lane, or of one register into a number", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  // small integers, so that the sums are exact; all sums differ
  fft::Lanes<T> x[W];
  std::vector<T> sums(W, T(0));
  for (Index k = 0; k < W; ++k)
    for (Index l = 0; l < W; ++l) {
      x[k][l] = static_cast<T>((1 + k * k) * (3 + l * (l + k)));
      sums[static_cast<std::size_t>(k)] += x[k][l];
    }
  const fft::Lanes<T> got = fft::sum_lanes<T>(x);
  for (Index k = 0; k < W; ++k) {
    CHECK(got[k] == sums[static_cast<std::size_t>(k)]);
    CHECK(fft::sum_lanes<T>(x[k]) == sums[static_cast<std::size_t>(k)]);
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

TEMPLATE_TEST_CASE("a butterfly computes (a + w b, a - w b) for every angle", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Z = fft::ComplexLanes<T>;
  using W = fft::Rotation<T>;
  const Complex i{0, 1};
  const auto check = [](auto&& step, auto&& expected) { CHECK(butterfly_error<T>(step, expected) <= 2.5); };
  check([](Z& a, Z& b, const W& w) { fft::butterfly(a, b, w); }, [](Complex b, Complex w) { return w * b; });
  check([](Z& a, Z& b, const W& w) { fft::quarter_butterfly(a, b, w); },
        [i](Complex b, Complex w) { return i * w * b; });
  check([](Z& a, Z& b, const W& w) { fft::negative_quarter_butterfly(a, b, w); },
        [i](Complex b, Complex w) { return -i * w * b; });
  check([](Z& a, Z& b, const W&) { fft::butterfly(a, b); }, [](Complex b, Complex) { return b; });
  check([](Z& a, Z& b, const W&) { fft::negative_quarter_butterfly(a, b); },
        [i](Complex b, Complex) { return -i * b; });
}

TEMPLATE_TEST_CASE("a butterfly without a twiddle factor equals one with the angle 0", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Buffer<fft::ComplexLanes<T>> x = normal_lanes<T>(2, 5);
  const fft::Rotation<T> none = fft::Rotation<T>::of({0, 7});
  CHECK(none.re == 1);
  CHECK(none.im == 0);
  fft::ComplexLanes<T> a = x.data()[0], b = x.data()[1], c = a, d = b;
  fft::butterfly(a, b);
  fft::butterfly(c, d, none);
  for (Index l = 0; l < fft::lane_count<T>; ++l) {
    CHECK(lane(a, l) == lane(c, l));
    CHECK(lane(b, l) == lane(d, l));
  }
}

TEMPLATE_TEST_CASE("butterflies keep their relative error near overflow and underflow", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  using Z = fft::ComplexLanes<T>;
  // an eighth of the largest number, and small numbers whose rounding errors do not underflow
  const int digits = Limits::digits;
  for (const int exponent : {Limits::max_exponent - 3, Limits::min_exponent + 2 * digits})
    for (const fft::Turn& turn : turns()) {
      const T size = std::ldexp(T(1), exponent);
      Z a{fft::Lanes<T>{} + size, fft::Lanes<T>{} - size}, b{fft::Lanes<T>{} - size / 2, fft::Lanes<T>{} + size};
      const Complex u = lane(a, 0), v = lane(b, 0) * unit_root(turn.part, turn.whole);
      fft::butterfly(a, b, fft::Rotation<T>::of(turn));
      INFO("2^" << exponent << ", angle " << turn.part << " / " << turn.whole);
      const double scale = 5 * epsilon<T> * static_cast<double>(std::abs(u) + std::abs(v));
      CHECK(static_cast<double>(std::abs(lane(a, 0) - (u + v))) <= scale);
      CHECK(static_cast<double>(std::abs(lane(b, 0) - (u - v))) <= scale);
    }
}

TEMPLATE_TEST_CASE("a NaN in one lane changes no other lane of a butterfly", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  const Buffer<fft::ComplexLanes<T>> x = normal_lanes<T>(2, 6);
  const fft::Rotation<T> w = fft::Rotation<T>::of({3, 10});
  for (Index bad = 0; bad < W; ++bad) {
    fft::ComplexLanes<T> a = x.data()[0], b = x.data()[1], c = a, d = b;
    fft::butterfly(a, b, w);
    d.im[bad] = nan_of<T>;
    fft::butterfly(c, d, w);
    for (Index l = 0; l < W; ++l) {
      CHECK((l == bad ? std::isnan(c.re[l]) : lane(a, l) == lane(c, l)));
      CHECK((l == bad ? std::isnan(d.re[l]) : lane(b, l) == lane(d, l)));
    }
  }
}

}  // namespace nprf::test::fft_lanes
