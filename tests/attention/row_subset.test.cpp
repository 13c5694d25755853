// SPDX-License-Identifier: MIT
#include "nprf/attention/row_subset.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::attention_row_subset {

TEST_CASE("some queries, their slots and their rows", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const std::vector<Index> at{0, 1, 3, 7, 8}, numbers{2, 3, 6};  // of 7 queries, 2 of them outside of the axis
  const RowSubset some(numbers, {2, {5, 0, at.data()}, nullptr}, team);
  CHECK(some.count() == 3);
  const Placement placed = some.placement();
  CHECK((placed.outside == 0 && placed.count() == 3));
  CHECK((placed.slots[0] == 0 && placed.slots[1] == 1 && placed.slots[2] == 8));

  Matrix<double> x = Matrix<double>::Random(7, 4);
  const Matrix<double> rows = some.of<double>(x);
  for (Index i = 0; i < 3; ++i) CHECK(same_bits<double>(rows.row(i), x.row(numbers[static_cast<std::size_t>(i)])));

  Matrix<double> expected = x;
  for (const Index i : numbers) expected.row(i) *= 2;
  const Matrix<double> twice = 2 * rows;
  some.put<double>(twice, x);
  CHECK(same_bits(x, expected));
}

TEST_CASE("no queries have no rows", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const RowSubset none({}, {0, {3}, nullptr}, team);
  CHECK(none.placement().count() == 0);
  CHECK(none.of<double>(Matrix<double>::Ones(3, 2)).rows() == 0);
}

}  // namespace nprf::test::attention_row_subset
