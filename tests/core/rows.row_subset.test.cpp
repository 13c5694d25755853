// SPDX-License-Identifier: MIT
#include "nprf/core/rows.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::core_rows_row_subset {

TEST_CASE("the rows of a subset of the queries can be copied from and to a matrix", "[core]") {
  Workspace workspace;
  const Team team(workspace);
  const std::vector<Index> numbers{2, 3, 6};
  const RowSubset subset(numbers, team);
  CHECK(subset.count() == 3);
  CHECK((subset.index(0) == 2 && subset.index(2) == 6));

  Matrix<double> x = Matrix<double>::Random(7, 4);
  const Matrix<double> rows = subset.of<double>(x);
  for (Index i = 0; i < 3; ++i) CHECK(same_bits<double>(rows.row(i), x.row(numbers[static_cast<std::size_t>(i)])));

  Matrix<double> expected = x;
  for (const Index i : numbers) expected.row(i) *= 2;
  const Matrix<double> twice = 2 * rows;
  subset.put<double>(twice, x);
  CHECK(same_bits(x, expected));
}

TEST_CASE("an empty subset has no rows", "[core]") {
  Workspace workspace;
  const Team team(workspace);
  const RowSubset none({}, team);
  CHECK(none.count() == 0);
  CHECK(none.of<double>(Matrix<double>::Ones(3, 2)).rows() == 0);
}

}  // namespace nprf::test::core_rows_row_subset
