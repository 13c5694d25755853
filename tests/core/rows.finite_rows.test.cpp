// SPDX-License-Identifier: MIT

#include "nprf/core/rows.hpp"

#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_rows_finite_rows {

TEST_CASE("finite rows stay, and others become zero", "[core]") {
  Workspace workspace;
  Matrix<double> x = normal<double>(9, 4, 1);
  CHECK(finite_rows<double>(x, workspace).data() == x.data());  // no copy
  Matrix<double> expected = x;
  x(3, 2) = std::numeric_limits<double>::quiet_NaN();
  x(8, 0) = -std::numeric_limits<double>::infinity();
  expected.row(3).setZero();
  expected.row(8).setZero();
  CHECK(same_bits<double>(finite_rows<double>(x, workspace), expected));
}

}  // namespace nprf::test::core_rows_finite_rows
