// SPDX-License-Identifier: MIT
#include "nprf/position/resize_bias.hpp"

#include <cmath>

#include <algorithm>
#include <limits>
#include <string>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_resize_bias {

namespace {

// the position of entry i of m among n entries: (i + 1/2) n / m - 1/2
double point(Index i, Index n, Index m) {
  return (static_cast<double>(i) + 0.5) * static_cast<double>(n) / static_cast<double>(m) - 0.5;
}

double linear_weight(double s) { return std::max(0.0, 1 - std::abs(s)); }

// Keys' cubic with a = -3/4, expanded
double cubic_weight(double s) {
  s = std::abs(s);
  if (s <= 1) return 1.25 * s * s * s - 2.25 * s * s + 1;
  return s < 2 ? -0.75 * s * s * s + 3.75 * s * s - 6 * s + 3 : 0;
}

// a plain implementation: the sum of all entries, with repeated ends, times the weights of their distances
template <class Weight>
Vector<double> resized_line(const Vector<double>& b, Index m, Weight weight) {
  const Index n = b.size();
  Vector<double> y = Vector<double>::Zero(m);
  for (Index i = 0; i < m; ++i)
    for (Index j = -3; j < n + 3; ++j)
      y[i] += weight(point(i, n, m) - static_cast<double>(j)) * b[std::clamp<Index>(j, 0, n - 1)];
  return y;
}

Matrix<double> resized_grid(const Matrix<double>& b, Index rows, Index cols) {
  Matrix<double> wide(b.rows(), cols), y(rows, cols);
  for (Index r = 0; r < b.rows(); ++r) wide.row(r) = resized_line(b.row(r).transpose(), cols, cubic_weight).transpose();
  for (Index c = 0; c < cols; ++c) y.col(c) = resized_line(wide.col(c), rows, cubic_weight);
  return y;
}

// weights are between -1 and 1.5; positions are up to 200 and are rounded only in the plain implementation
constexpr double rounding = 1000 * std::numeric_limits<double>::epsilon();

const Index sizes[] = {1, 3, 5, 7, 13, 27, 101};

}  // namespace

TEMPLATE_TEST_CASE("resized: the same size gives the same bits", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : sizes) {
    const Vector<T> b = normal_vector<T>(n, 1);
    const Matrix<T> grid = normal<T>(n, 7, 2);
    CHECK(same_bits<T>(resize_bias(b, n), b));
    CHECK(same_bits<T>(resize_bias(grid, (n + 1) / 2, 4), grid));
  }
}

TEST_CASE("resized: every entry equals that of a plain implementation", "[position]") {
  for (const Index n : sizes)
    for (const Index m : sizes) {
      INFO(n << " to " << m);
      const Vector<double> b = normal_vector<double>(n, 3);
      CHECK(worst_ratio(resize_bias(b, m), resized_line(b, m, linear_weight), rounding) <= 1);
      const Matrix<double> grid = normal<double>(n, 9, 4);
      CHECK(worst_ratio(resize_bias(grid, (m + 1) / 2, 3), resized_grid(grid, m, 5), rounding) <= 1);
      CHECK(worst_ratio(resize_bias(grid, (m + 1) / 2, 9), resized_grid(grid, m, 17), rounding) <= 1);
    }
}

TEST_CASE("resized: the centre is bitwise preserved", "[position]") {
  for (const Index n : sizes)
    for (const Index m : sizes) {
      INFO(n << " to " << m);
      const Vector<double> b = normal_vector<double>(n, 5);
      const Matrix<double> grid = normal<double>(n, m, 6);
      CHECK(resize_bias(b, m)[m / 2] == b[n / 2]);
      CHECK(resize_bias(grid, m, n)(m - 1, n - 1) == grid(n / 2, m / 2));
    }
}

TEST_CASE("resized: the result in float is the rounded result in double", "[position]") {
  const Vector<float> b = normal_vector<float>(13, 9);
  const Matrix<float> grid = normal<float>(13, 13, 10);
  CHECK(resize_bias(b, 27) == resize_bias<double>(b.cast<double>(), 27).cast<float>());
  CHECK(resize_bias(grid, 14, 14) == resize_bias<double>(grid.cast<double>(), 14, 14).cast<float>());
}

TEST_CASE("resized: sizes that are not odd and positive are rejected", "[position]") {
  const Vector<float> b = Vector<float>::Zero(5);
  for (const Index size : {-3, -1, 0, 4})
    check_invalid([&] { resize_bias(b, size); }, {"size: expected an odd number", "got " + std::to_string(size)});
  for (const Index size : {0, 2, 10})
    check_invalid([&] { resize_bias<float>(Vector<float>::Zero(size), 5); },
                  {"b: expected an odd number of scalars", "got " + std::to_string(size)});

  const Matrix<double> grid = Matrix<double>::Zero(5, 3);
  for (const Index extent : {-1, 0}) {
    check_invalid([&] { resize_bias(grid, extent, 2); },
                  {"height: expected at least 1", "got " + std::to_string(extent)});
    check_invalid([&] { resize_bias(grid, 2, extent); },
                  {"width: expected at least 1", "got " + std::to_string(extent)});
  }
  check_invalid([] { resize_bias<double>(Matrix<double>::Zero(4, 3), 2, 2); }, {"b: expected", "got 4 x 3"});
  check_invalid([] { resize_bias<double>(Matrix<double>::Zero(3, 0), 2, 2); }, {"b: expected", "got 3 x 0"});
}

TEMPLATE_TEST_CASE("resized: non-finite entries are rejected with their index", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), infinity, -infinity}) {
    Vector<T> b = Vector<T>::Zero(5);
    b[3] = wrong;
    check_invalid([&] { resize_bias(b, 9); }, {"b[3]: expected a finite number", "-infinity must be rebuilt"});
    Matrix<T> grid = Matrix<T>::Zero(5, 3);
    grid(4, 1) = wrong;
    check_invalid([&] { resize_bias(grid, 5, 5); }, {"b(4, 1): expected a finite number", "-infinity must be rebuilt"});
  }
}

}  // namespace nprf::test::position_resize_bias
