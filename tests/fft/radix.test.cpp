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

// polynomial_tree.test.cpp tests splits, which trees run through; joins also have a radix that none of its trees has
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

//     whole[j + l n/R] = sum_k e^(-2 pi i order (j + l n/R) / n) part_k[j]
TEMPLATE_TEST_CASE("element l of a join is the sum of e^(2 pi i part_order (turns - l / R)) z_k", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const int each : radices)
    fft::with_radix(each, [](auto radix) {
      constexpr int R = radix;
      for (const fft::Turn& turn : turns()) {
        std::vector<T> table(static_cast<std::size_t>(fft::constants(R)));
        fft::write_constants(fft::Step::join, R, turn, table.data());
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

}  // namespace nprf::test::fft_radix
