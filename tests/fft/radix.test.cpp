// SPDX-License-Identifier: MIT
#include "nprf/fft/radix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"

namespace nprf::test::fft_radix {

namespace {

constexpr int radices[] = {2, 3, 4, 5, 8};

// angles of steps: a / R for the angle a of a block, and -j / n
std::vector<fft::Turn> turns() {
  std::vector<fft::Turn> all;
  for (const Index whole : {1, 2, 4, 8, 24, 25, 30, 1024, 1 << 20})
    for (const Index part : {Index{0}, Index{1}, whole / 4, whole / 2, whole - 1})
      all.push_back({part, whole}), all.push_back({-part, whole});
  return all;
}

template <int radix, class T>
std::vector<T> table_of(fft::Step step, const fft::Turn& turn) {
  std::vector<T> table(static_cast<std::size_t>(fft::constants(radix)));
  fft::write_constants(step, radix, turn, table.data());
  return table;
}

// The largest error of step(z) over all lanes, in units of eps sum |z|:  expected[k] = sum_l root(k, l) z_l.
template <int radix, class T, class Step, class Root>
double step_error(Step&& step, Root&& root) {
  using Z = fft::ComplexLanes<T>;
  const Buffer<Z> in = normal_lanes<T>(radix, 7);
  Z z[radix];
  std::copy_n(in.data(), radix, z);
  step(z);
  double worst = 0;
  for (Index l = 0; l < fft::lane_count<T>; ++l)
    for (int k = 0; k < radix; ++k) {
      Complex expected = 0;
      long double magnitude = 0;
      for (int m = 0; m < radix; ++m) {
        expected += root(k, m) * lane(in.data()[m], l);
        magnitude += std::abs(lane(in.data()[m], l));
      }
      const auto ratio = static_cast<double>(std::abs(lane(z[k], l) - expected) / magnitude);
      if (!(ratio <= worst)) worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    }
  return worst / epsilon<T>;
}

// a step rounds at most this often, each time by at most eps sum |z|
constexpr double tolerance(int radix) { return 1 + std::bit_width(static_cast<unsigned>(radix)); }

}  // namespace

static_assert(fft::part_order(8, 1) == 4, "known at compile time");

TEST_CASE("the supported radices are 2, 3, 4, 5 and 8", "[fft]") {
  for (int radix = -1; radix <= 20; ++radix) {
    std::vector<int> used;
    fft::with_radix(radix, [&](auto r) {
      static_assert(decltype(r)::value > 1);
      used.push_back(r);
    });
    const bool exists = std::find(std::begin(radices), std::end(radices), radix) != std::end(radices);
    CHECK(used == (exists ? std::vector<int>{radix} : std::vector<int>{}));
  }
}

TEST_CASE("part_order is a permutation, and reverses bits for powers of two", "[fft]") {
  for (const int radix : radices) {
    std::vector<int> order;
    for (int k = 0; k < radix; ++k) order.push_back(fft::part_order(radix, k));
    INFO("radix " << radix);
    CHECK(order[0] == 0);
    if (radix == 2 || radix == 4 || radix == 8)
      for (int k = 0; k < radix; ++k) {
        int reversed = 0;
        for (int bit = 1; bit < radix; bit *= 2) reversed = 2 * reversed + (k & bit ? 1 : 0);
        CHECK(order[static_cast<std::size_t>(k)] == reversed);
      }
    std::sort(order.begin(), order.end());
    for (int k = 0; k < radix; ++k) CHECK(order[static_cast<std::size_t>(k)] == k);
  }
}

TEMPLATE_TEST_CASE("write_constants writes exactly the constants of a step", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const int radix : radices)
    for (const fft::Step step : {fft::Step::split, fft::Step::join}) {
      std::vector<T> table(20, nan_of<T>);
      fft::write_constants(step, radix, {1, 7}, table.data());
      INFO("radix " << radix);
      for (Index k = 0; k < 20; ++k)
        CHECK(std::isnan(table[static_cast<std::size_t>(k)]) == (k >= fft::constants(radix)));
    }
}

//     block[j + l n/R] z^(l n/R) = block[j + l n/R] e^(2 pi i l (a + order) / R)   modulo z^(n/R) - e^(2 pi i (a +
//     order) / R)
TEMPLATE_TEST_CASE("part k of a split is the sum of e^(2 pi i l (a + part_order) / R) z_l", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const int each : radices)
    fft::with_radix(each, [](auto radix) {
      constexpr int R = radix;
      for (const fft::Turn& turn : turns()) {
        const std::vector<T> table = table_of<R, T>(fft::Step::split, turn);
        const double error =
            step_error<R, T>([&](auto& z) { fft::split_parts<R>(z, table.data()); },
                             [&](int k, int l) {
                               return unit_root(l * turn.part, turn.whole) * unit_root(l * fft::part_order(R, k), R);
                             });
        INFO("radix " << R << ", turn " << turn.part << " / " << turn.whole);
        CHECK(error <= tolerance(R));
      }
    });
}

//     whole[j + l n/R] = sum_k e^(-2 pi i order (j + l n/R) / n) part_k[j]
TEMPLATE_TEST_CASE("element l of a join is the sum of e^(2 pi i part_order (turns - l / R)) z_k", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const int each : radices)
    fft::with_radix(each, [](auto radix) {
      constexpr int R = radix;
      for (const fft::Turn& turn : turns()) {
        const std::vector<T> table = table_of<R, T>(fft::Step::join, turn);
        const double error =
            step_error<R, T>([&](auto& z) { fft::join_parts<R>(z, table.data()); },
                             [&](int l, int k) {
                               const Index order = fft::part_order(R, k);
                               return unit_root(order * turn.part, turn.whole) * std::conj(unit_root(order * l, R));
                             });
        INFO("radix " << R << ", turn " << turn.part << " / " << turn.whole);
        CHECK(error <= tolerance(R));
      }
    });
}

TEMPLATE_TEST_CASE("join_leaf is a join of radix 8 at angle 0", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(step_error<8, T>([](auto& z) { fft::join_leaf(z); },
                         [](int l, int k) { return std::conj(unit_root(fft::part_order(8, k) * l, 8)); }) <=
        tolerance(8));
}

TEMPLATE_TEST_CASE("a split and a join of radix R multiply numbers by R", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const int each : radices)
    fft::with_radix(each, [](auto radix) {
      constexpr int R = radix;
      const std::vector<T> split_table = table_of<R, T>(fft::Step::split, {0, 1}),
                           join_table = table_of<R, T>(fft::Step::join, {0, 1});
      const double error = step_error<R, T>(
          [&](auto& z) {
            fft::split_parts<R>(z, split_table.data());
            fft::join_parts<R>(z, join_table.data());
          },
          [](int k, int l) { return Complex(k == l ? R : 0); });
      INFO("radix " << R);
      CHECK(error <= 2 * tolerance(R));
    });
}

TEMPLATE_TEST_CASE("a NaN in one lane changes no other lane of a step", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Z = fft::ComplexLanes<T>;
  constexpr Index W = fft::lane_count<T>;
  for (const int each : radices)
    fft::with_radix(each, [](auto radix) {
      constexpr int R = radix;
      const std::vector<T> table = table_of<R, T>(fft::Step::split, {1, 7});
      const Buffer<Z> in = normal_lanes<T>(R, 3);
      for (const bool split : {true, false})
        for (Index bad = 0; bad < W; ++bad) {
          Z expected[R], z[R];
          std::copy_n(in.data(), R, expected), std::copy_n(in.data(), R, z);
          z[R - 1].im[bad] = nan_of<T>;
          const auto step = [&](Z(&x)[R]) {
            split ? fft::split_parts<R>(x, table.data()) : fft::join_parts<R>(x, table.data());
          };
          step(expected), step(z);
          INFO("radix " << R << ", lane " << bad);
          for (int k = 0; k < R; ++k)
            for (Index l = 0; l < W; ++l)
              CHECK((l == bad ? std::isnan(z[k].re[l]) || std::isnan(z[k].im[l])
                              : lane(z[k], l) == lane(expected[k], l)));
        }
    });
}

}  // namespace nprf::test::fft_radix
