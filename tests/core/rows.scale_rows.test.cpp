// SPDX-License-Identifier: MIT
#include "nprf/core/rows.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::core_scale_rows {

TEMPLATE_TEST_CASE("scale_rows multiplies each row by its own factor", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {0, 1, 3, 127, 128, 129, 300}) {
    const Matrix<T> x = normal<T>(n + 1, 7, 1);
    const Vector<T> scale = normal_vector<T>(n, 2);
    Matrix<T> xs = Matrix<T>::Constant(n, 6, 5);
    std::vector<Workspace> workspaces(3);
    scale_rows<T>(x.block(1, 2, n, 4), RowScale<T>(scale.data(), static_cast<std::size_t>(n)), xs.leftCols(4),
                  Team(workspaces));
    Index wrong = 0;
    for (Index i = 0; i < n; ++i)
      for (Index c = 0; c < 6; ++c) wrong += xs(i, c) != (c < 4 ? scale[i] * x(1 + i, 2 + c) : T(5));
    CHECK(wrong == 0);
  }
}

}  // namespace nprf::test::core_scale_rows
