// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/key_subset.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_weights_key_subset {

TEST_CASE("a subset of keys has their slots, their tokens and their rows", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  // two extra tokens, of which the second is masked; cells in slots 0, 5, 6, 9
  const std::vector<Index> slots{0, 5, 6, 9}, tokens{0, 2, 4, 5, 7};
  const Placement keys({4, 0, slots.data()}, 1, tokens.data());
  const Matrix<double> x = normal<double>(5, 3, 1);
  for (const std::vector<Index>& indices :
       std::vector<std::vector<Index>>{{}, {0}, {0, 1, 2}, {0, 2, 4}, {1, 2}, {4}, {0, 1, 2, 3, 4}}) {
    const KeySubset some(keys, indices, team);
    const Index count = static_cast<Index>(indices.size());
    const Placement& of = some.placement();
    REQUIRE(some.count() == count);
    REQUIRE(of.count() == count);
    Matrix<double> sum = x;
    const MatrixView<double> rows = some.of<double>(x);
    MatrixRef<double> sums = some.sums_of<double>(sum);
    REQUIRE(rows.rows() == count);
    for (Index l = 0; l < count; ++l) {
      const Index j = indices[static_cast<std::size_t>(l)];
      CHECK(some[l] == j);
      CHECK(of.token_index(l) == keys.token_index(j));
      CHECK((l < of.outside) == (j == 0));
      if (l >= of.outside) CHECK(of.slots[l - of.outside] == slots[static_cast<std::size_t>(j - 1)]);
      CHECK(rows.row(l) == x.row(j));
      sums.row(l).array() += static_cast<double>(j + 1);
    }
    some.add_to<double>(sum, sums);
    Matrix<double> expected = x;
    for (const Index j : indices) expected.row(j).array() += static_cast<double>(j + 1);
    CHECK(sum == expected);
  }
}

}  // namespace nprf::test::attention_weights_key_subset
