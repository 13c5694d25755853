// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/signal_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_fft_signal_layout {

namespace {

template <class T>
using Limits = std::numeric_limits<T>;

template <class T>
constexpr T nan_of = Limits<T>::quiet_NaN();

template <class T>
T power(int exponent) {
  return std::ldexp(T(1), exponent);
}

// numbers that all differ, and are exact in any type
template <class T>
Matrix<T> counted(Index rows, Index cols) {
  Matrix<T> X(rows, cols);
  for (Index i = 0; i < X.size(); ++i) X.data()[i] = static_cast<T>(i + 1);
  return X;
}

// a view whose rows are not contiguous
template <class T>
MatrixView<T> inner(const Matrix<T>& X) {
  return X.block(1, 2, X.rows() - 2, X.cols() - 5);
}

}  // namespace

TEMPLATE_TEST_CASE("an infinite scale is 0 as a factor", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(toeplitz::finite(Limits<T>::infinity()) == 0);
  CHECK(toeplitz::finite(1 / Limits<T>::infinity()) == 0);
  CHECK(toeplitz::finite(T(8)) == 8);

  constexpr Index W = fft::lane_count<T>;
  fft::Lanes<T> scale;
  for (Index l = 0; l < W; ++l) scale[l] = l % 2 == 0 ? power<T>(static_cast<int>(l) - 3) : Limits<T>::infinity();
  const fft::Lanes<T> inverse = toeplitz::inverse<T>(scale), finite = toeplitz::finite_lanes<T>(scale);
  for (Index l = 0; l < W; ++l) {
    CHECK(inverse[l] == (l % 2 == 0 ? 1 / scale[l] : T(0)));
    CHECK(finite[l] == (l % 2 == 0 ? scale[l] : T(0)));
  }
}

TEMPLATE_TEST_CASE("the scale of a column is that of its largest absolute value", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  Matrix<T> X = normal<T>(30, 14, 1);
  for (Index r = 0; r < X.cols(); ++r) X.col(r) *= power<T>(static_cast<int>(7 * r) - 40);
  X.col(5).setZero();
  X.col(6).setConstant(-T(0));
  X(12, 7) = -power<T>(90);
  const MatrixView<T> view = inner(X);
  auto scale = workspace.vector<T>(view.cols());
  toeplitz::column_scales(view, scale);
  for (Index r = 0; r < view.cols(); ++r) {
    INFO("column " << r);
    CHECK(scale[r] == power_of_two_scale<T>(view.col(r).cwiseAbs().maxCoeff()));
  }
  CHECK(scale[3] == Limits<T>::infinity());
  CHECK(scale[4] == Limits<T>::infinity());
  CHECK(scale[5] >= power<T>(90));

  const Matrix<T> nothing(0, 9);
  toeplitz::column_scales<T>(nothing, scale);
  for (Index r = 0; r < scale.size(); ++r) CHECK(scale[r] == Limits<T>::infinity());
}

TEMPLATE_TEST_CASE("a column divided by its scale has maximum 1, zeros stay zeros", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  Matrix<T> X = normal<T>(20, 12, 2);
  X.col(3) *= power<T>(50);
  X.col(4) *= power<T>(Limits<T>::min_exponent - 6);  // all subnormal
  X.col(5).setZero();
  const MatrixView<T> view = inner(X);
  for (Index column = 0; column < view.cols(); ++column) {
    const toeplitz::ScaledColumn<T> u(view, column, workspace);
    const T largest = view.col(column).cwiseAbs().maxCoeff();
    INFO("column " << column);
    CHECK(u.scale == power_of_two_scale(largest));
    for (Index j = 0; j < view.rows(); ++j) {
      CHECK(std::abs(u.values[j]) <= 1);
      CHECK(u.values[j] * toeplitz::finite(u.scale) == view(j, column));
    }
  }
  const Matrix<T> nothing(0, 2);
  CHECK(toeplitz::ScaledColumn<T>(nothing, 1, workspace).scale == Limits<T>::infinity());
}

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

TEMPLATE_TEST_CASE("a later row of slot 0 shifts all slots", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const Index first = 150, n = 500;
  const std::vector<Index> at{0, 1, 7, 127, 128, 300};
  const Matrix<T> all = counted<T>(8, 9);
  const MatrixView<T> X = inner(all);  // (6,4)
  const Slots slots{X.rows(), 0, at.data()};
  const MatrixView<T> spread = toeplitz::in_slots(X, slots, {n, first}, team);
  Matrix<T> expected = Matrix<T>::Zero(n, X.cols());
  for (Index i = 0; i < X.rows(); ++i) expected.row(first + at[static_cast<std::size_t>(i)]) = X.row(i);
  CHECK(same_bits(Matrix<T>(spread), expected));

  auto filled = team.workspace().matrix<T>(n, X.cols());
  filled = expected;
  Matrix<T> back(X.rows(), X.cols());
  toeplitz::from_slots<T>(filled, slots, back, team, first);
  CHECK((back == X));
}

TEMPLATE_TEST_CASE("column lanes have the scales of their columns, and dividing by them is exact", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>, n = 20;
  Workspace workspace;
  Matrix<T> X = normal<T>(n, W, 3);
  for (Index l = 0; l < W; ++l) X.col(l) *= power<T>(static_cast<int>(11 * l) - 30);
  X.col(W - 1).setZero();
  for (Index width = 1; width <= W; ++width) {
    const Workspace::Scope scope(workspace);
    toeplitz::ColumnLanes<T> lanes(workspace, n, n + 4, width);
    lanes.read(X, 0);
    lanes.values[n] = fft::Lanes<T>{} + power<T>(100);  // rows beyond n do not count
    const fft::Lanes<T> scale = lanes.scales();
    for (Index l = 0; l < W; ++l)
      CHECK(scale[l] == (l < width ? power_of_two_scale<T>(X.col(l).cwiseAbs().maxCoeff()) : Limits<T>::infinity()));
    lanes.scale(toeplitz::inverse<T>(scale));
    for (Index i = 0; i < n; ++i)
      for (Index l = 0; l < W; ++l) CHECK(std::abs(lanes.values[i][l]) <= 1);
    CHECK(lanes.values[n][0] == power<T>(100));
    lanes.scale(toeplitz::finite_lanes<T>(scale));
    Matrix<T> back = Matrix<T>::Zero(n, W);
    MatrixRef<T> to = back;
    lanes.write(to, 0);
    CHECK((back.leftCols(width) == X.leftCols(width)));
    lanes.set_zero();
    for (Index i = 0; i < n + 4; ++i)
      for (Index l = 0; l < W; ++l) CHECK(lanes.values[i][l] == 0);
  }
}

TEMPLATE_TEST_CASE("a NaN or an infinity in a column changes no other lane", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  for (const T sick : {nan_of<T>, Limits<T>::infinity(), -Limits<T>::infinity()})
    for (Index l = 0; l < W; ++l) {
      const Workspace::Scope scope(workspace);
      Matrix<T> X = Matrix<T>::Constant(9, W, T(5));
      X(4, l) = sick;
      toeplitz::ColumnLanes<T> lanes(workspace, 9, 12, W);
      lanes.read(X, 0);
      const fft::Lanes<T> scale = lanes.scales();
      for (Index k = 0; k < W; ++k) {
        CHECK(std::isfinite(scale[k]));
        CHECK(scale[k] > 0);
        if (k != l) CHECK(scale[k] == 8);
      }
      lanes.scale(toeplitz::inverse<T>(scale));
      CHECK_FALSE(std::isfinite(lanes.values[4][l]));
    }
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

TEMPLATE_TEST_CASE("features are contiguous, scaled, twisted or not, with zeros after the last token", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index L = 40;
  const Vector<T> twist = normal_vector<T>(2 * L, 1);
  for (const Index n : {0, 1, 10, 40})
    for (const bool twisted : {false, true}) {
      constexpr Index r = 3, width = 4;
      const Matrix<T> all = counted<T>(n + 2, width + 5);
      const MatrixView<T> X = inner(all);  // (n,width)
      Workspace workspace;
      const toeplitz::FeatureColumns<T> columns(workspace, r, L, twisted ? twist.data() : nullptr);
      const Index numbers = twisted ? 2 : 1;
      for (Index k = 0; k < r; ++k) std::fill_n(columns[k], numbers * L, nan_of<T>);
      // tiles end before, at and after the last token
      for (const auto& [j0, rows] : std::vector<std::pair<Index, Index>>{{0, 7}, {7, 3}, {10, 16}, {26, 14}}) {
        for (Index k = 0; k < r; ++k) columns.read(k, X, k + 1, power<T>(static_cast<int>(k) - 1), j0, rows);
        for (Index k = 0; k < r; ++k)
          for (Index at = 0; at < numbers * L; ++at) {
            const Index j = at / numbers;
            INFO(n << " tokens, feature " << k << ", token " << j << " after tile " << j0 << ", twisted " << twisted);
            const T value = j < n ? X(j, k + 1) * power<T>(static_cast<int>(k) - 1) : T(0);
            if (j < j0 + rows)
              CHECK(columns[k][at] == (twisted && j < n ? value * twist[at] : value));
            else
              CHECK(std::isnan(columns[k][at]));
          }
      }
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

}  // namespace nprf::test::toeplitz_fft_signal_layout
