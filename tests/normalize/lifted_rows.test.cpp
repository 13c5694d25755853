// SPDX-License-Identifier: MIT
#include "nprf/normalize/lifted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::normalize_lifted_rows {

namespace {

// |scale row| in long double
template <class T, class Row>
double norm(T scale, const Row& row) {
  return static_cast<double>(scale * std::sqrt(row.template cast<long double>().squaredNorm()));
}

template <class T>
Matrix<T> rows(Index n, Index d) {
  Matrix<T> x(n, d);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(std::sin(1.3 * static_cast<double>(i * i) + 0.2));
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("rows of ordinary norms are not copied", "[normalize]", float, double) {
  Workspace workspace;
  const Team team(workspace);
  const Matrix<TestType> x = rows<TestType>(5, 3);
  for (const Normalization& normalization : {Normalization::unit(2), Normalization::none()}) {
    Vector<TestType> scale(5), expected(5);
    normalization.row_scale<TestType>(x, true, expected, team);
    const LiftedRows<TestType> lifted(normalization, true, x, scale, team);
    CHECK(lifted.indices().empty());
    CHECK(lifted.rows().data() == x.data());
    CHECK(scale == expected);
  }
}

TEMPLATE_TEST_CASE("only rows whose factor overflows are multiplied by a power of two", "[normalize]", float, double) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const T subnormal = std::numeric_limits<T>::denorm_min();
  Matrix<T> x = rows<T>(6, 3);
  x.row(1) << subnormal, 0, -3 * subnormal;
  x.row(3) << 0, 7 * subnormal, 0;
  x.row(4).setZero();
  Vector<T> scale(6);
  const LiftedRows<T> lifted(Normalization::unit(2), true, x, scale, team);
  REQUIRE(lifted.indices().size() == 2);
  CHECK(lifted.indices()[0] == 1);
  CHECK(lifted.indices()[1] == 3);
  for (Index i = 0; i < 6; ++i) {
    const bool is_short = i == 1 || i == 3;
    const Vector<T> expected = x.row(i) * (is_short ? LiftedRows<T>::lift : T(1));
    CHECK(lifted.rows().row(i).transpose() == expected);
    CHECK(std::isfinite(scale[i]));
    // the rounding errors of a sum of 3 squares, a square root, a quotient and the factor
    if (i == 4)
      CHECK(lifted.rows().row(i).isZero(0));
    else
      CHECK(std::abs(norm(scale[i], lifted.rows().row(i)) - 2) <= 8 * std::numeric_limits<T>::epsilon());
  }
}

TEMPLATE_TEST_CASE("short rows of a block of a wider matrix are lifted", "[normalize]", float, double) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  Matrix<T> wide = rows<T>(4, 8);
  wide.row(2).segment(2, 3).setConstant(std::numeric_limits<T>::denorm_min());
  Vector<T> scale(4);
  const LiftedRows<T> lifted(Normalization::unit(1), true, wide.middleCols(2, 3), scale, team);
  REQUIRE(lifted.indices().size() == 1);
  CHECK(lifted.indices()[0] == 2);
  CHECK(lifted.rows().row(3) == wide.row(3).segment(2, 3));
  CHECK(lifted.rows()(2, 1) == LiftedRows<T>::lift * std::numeric_limits<T>::denorm_min());
}

}  // namespace nprf::test::normalize_lifted_rows
