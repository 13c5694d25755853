// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/head_matrices.hpp"

#include <numeric>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_batch_head_matrices {

TEST_CASE("the matrix of each head stands at its strides", "[attention]") {
  std::vector<double> values(2 * 100);
  std::iota(values.begin(), values.end(), 0);
  // heads side by side within a row, as [batch, tokens, heads, channels] has them
  const HeadMatrices<const double> x{values.data(), 4, 2, 7, 3, 100};
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) {
      const auto rows = x(b, h);
      REQUIRE(rows.rows() == 4);
      REQUIRE(rows.cols() == 2);
      for (Index i = 0; i < 4; ++i)
        for (Index c = 0; c < 2; ++c) CHECK(rows(i, c) == static_cast<double>(100 * b + 3 * h + 7 * i + c));
    }
  const HeadMatrices<double> y{values.data(), 4, 2, 7, 3, 100};
  y(1, 1).row(3).setConstant(-1);
  CHECK(values[100 + 3 + 21] == -1);
  CHECK(values[100 + 3 + 21 + 1] == -1);
  CHECK(values[100 + 3 + 21 + 2] == 126);
  static_assert(!std::is_assignable_v<decltype(x(0, 0)(0, 0)), double>);
}

TEST_CASE("one head is the caller's own matrix", "[attention]") {
  Matrix<float> all = normal<float>(6, 5, 1);
  const MatrixView<float> block = all.block(1, 2, 4, 3);
  const HeadMatrices<const float> read = one_head(block);
  CHECK(read(0, 0).data() == &all(1, 2));
  CHECK(read(0, 0) == all.block(1, 2, 4, 3));
  const HeadMatrices<float> write = one_head(all);
  CHECK(write(0, 0).data() == all.data());
  CHECK(write(0, 0) == all);

  Matrix<float> none(0, 3);
  CHECK(one_head(none)(0, 0).rows() == 0);
  CHECK(one_head(none)(0, 0).cols() == 3);
}

}  // namespace nprf::test::attention_batch_head_matrices
