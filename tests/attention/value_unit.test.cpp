// SPDX-License-Identifier: MIT
#include "nprf/attention/value_unit.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_value_unit {

TEMPLATE_TEST_CASE("the largest of what is finite, and the power of two above it", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  Matrix<T> x = Matrix<T>::Zero(3, 4);
  CHECK(largest_finite(x) == 0);
  CHECK(unit_of_all(x) == 1);
  CHECK(unit_of_all(Matrix<T>(0, 4)) == 1);
  CHECK(unit_of_all(Matrix<T>(3, 0)) == 1);
  x(1, 2) = T(-5);
  CHECK(largest_finite(x) == 5);
  CHECK(unit_of_all(x) == 8);
  CHECK(unit_of_all(x.row(0)) == 1);
  x(0, 0) = Limits::quiet_NaN(), x(2, 3) = -Limits::infinity();
  CHECK(largest_finite(x) == 5);
  CHECK(unit_of_all(x.leftCols(1)) == 1);
  x(1, 2) = Limits::denorm_min();
  CHECK((unit_of_all(x) > 0 && std::isfinite(1 / unit_of_all(x))));
}

TEMPLATE_TEST_CASE("values have a unit where they are extreme alone", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const Matrix<T> v = normal<T>(5, 3, 1);
  for (const T size : {T(1), T(1e10), T(1e-10)}) {
    const Matrix<T> usual = size * v;
    CHECK(extreme_unit<T>(usual) == 1);
    CHECK(in_units<T>(usual, T(1), team).data() == usual.data());
  }
  for (const T size : {most_apart<T> * T(16), 1 / most_apart<T> / T(16)}) {
    const Matrix<T> extreme = size * v;
    const T unit = extreme_unit<T>(extreme);
    CHECK(unit == unit_of_all(extreme));
    const Matrix<T> scaled = in_units<T>(extreme, unit, team);
    CHECK(scaled * unit == extreme);
    CHECK((largest_finite(scaled) <= 1 && largest_finite(scaled) >= T(0.5)));
  }
}

}  // namespace nprf::test::attention_value_unit
