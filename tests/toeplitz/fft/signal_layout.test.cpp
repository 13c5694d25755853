// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/signal_layout.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_fft_signal_layout {

TEST_CASE("staggered arrays start in different sets of a cache", "[toeplitz]") {
  // of 64 sets of 64 bytes: arrays of powers of two, one after the other, begin in at least 32 of them
  const auto check = []<class X>(X) {
    for (Index n = 64; n <= Index{1} << 20; n *= 2) {
      const Index size = toeplitz::staggered<X>(n);
      CHECK(size > n);
      CHECK((size - n) * static_cast<Index>(sizeof(X)) <= 18 * 64);
      std::set<Index> sets;
      for (Index k = 0; k < 64; ++k) sets.insert(k * size * static_cast<Index>(sizeof(X)) / 64 % 64);
      CHECK(sets.size() >= 32);
    }
  };
  struct Line {
    double x[8];
  };
  struct TwoLines {
    double x[16];
  };
  check(float{}), check(double{}), check(Line{}), check(TwoLines{});
  check(fft::Lanes<float>{}), check(fft::ComplexLanes<float>{}), check(fft::ComplexLanes<double>{});
}

TEMPLATE_TEST_CASE("each column is in one group, or left over", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (Index r = 0; r <= 6 * W; ++r)
    for (Index p = 0; p <= 4 * W + 1; ++p) {
      const toeplitz::ColumnGroups<T> groups(r, p);
      std::vector<int> taken(static_cast<std::size_t>(p));
      bool right_width = true;
      for (Index group = 0; group < groups.count; ++group) {
        right_width = right_width && groups.width(group) >= 1 && groups.width(group) <= W;
        for (Index l = 0; l < groups.width(group); ++l) ++taken.at(static_cast<std::size_t>(group * W + l));
      }
      for (Index column = p - groups.left_over; column < p; ++column) ++taken.at(static_cast<std::size_t>(column));
      INFO("r " << r << ", p " << p);
      REQUIRE(right_width);
      REQUIRE(std::count(taken.begin(), taken.end(), 1) == p);
      REQUIRE(groups.left_over < W);
      // of the two ways for the last columns, the one with fewer transforms
      const Index rest = p % W, alone = rest * ((r + W - 1) / W), together = r;
      REQUIRE((groups.left_over == rest ? alone : together) == std::min(alone, together));
    }
}

TEST_CASE("empty lanes count as signals", "[toeplitz]") {
  constexpr Index W = fft::lane_count<double>;
  const auto count = [](Index r, Index p) { return toeplitz::signals<double>(r, p, 1); };
  CHECK(count(6, W) == 6 * W);
  CHECK(count(5, 2 * W) == 5 * 2 * W);
  // features as lanes, where one column is left over
  CHECK(count(2 * W, W + 1) == 2 * W * (W + 1));
  CHECK(count(2 * W + 1, 1) == 3 * W);
  CHECK(toeplitz::signals<double>(2 * W, W + 1, 3) == 2 * W * (W + 3));
  // or a group that is not full, if that is less
  CHECK(count(1, W - 1) == W);
}

TEST_CASE("gradients of tokens without gaps are in the caller's storage", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Matrix<float> A = Matrix<float>::Ones(4, 3), B = Matrix<float>::Ones(3, 3), U = Matrix<float>::Ones(3, 2);
  toeplitz::Gradients<float> d({4, 3, 3, 2});
  toeplitz::GradientRefs<float> out{d.dA, d.dB, d.dU, d.dc};
  toeplitz::SlotGradients<float> slots(toeplitz::Factors<float>::without_gaps(A, B, U), {4, 0}, {3, 0}, out, {}, team);
  const toeplitz::GradientRefs<float> in_slots = slots.refs();
  CHECK((in_slots.dA.data() == d.dA.data() && in_slots.dB.data() == d.dB.data() && in_slots.dU.data() == d.dU.data()));
}

}  // namespace nprf::test::toeplitz_fft_signal_layout
