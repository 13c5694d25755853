// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/exact_pairs.hpp"

#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_finite_rows {

TEST_CASE("finite rows stay, and others become zero", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  Matrix<double> x = normal<double>(9, 4, 1);
  CHECK(finite_rows<double>(x, team).data() == x.data());  // no copy
  Matrix<double> expected = x;
  x(3, 2) = std::numeric_limits<double>::quiet_NaN();
  x(8, 0) = -std::numeric_limits<double>::infinity();
  expected.row(3).setZero();
  expected.row(8).setZero();
  CHECK(same_bits<double>(finite_rows<double>(x, team), expected));
}

}  // namespace nprf::test::attention_exact_finite_rows
