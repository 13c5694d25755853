// SPDX-License-Identifier: MIT
#include "nprf/core/rows.hpp"

#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::core_rows {

TEMPLATE_TEST_CASE("a NaN or an infinity at any place of a row or of a matrix is found", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 3, d = 11;
  const Matrix<T> finite = normal<T>(n, d, 1);
  CHECK(is_finite(row_of(finite, 0)));
  CHECK(has_finite_entries(finite));
  CHECK(has_finite_entries(Matrix<T>(0, d)));
  for (const T bad :
       {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity()})
    for (Index l = 0; l < d; ++l) {
      Matrix<T> x = finite;
      x(1, l) = bad;
      CHECK_FALSE(is_finite(row_of(x, 1)));
      CHECK(is_finite(row_of(x, 0)));
      CHECK_FALSE(has_finite_entries(x));
      CHECK_FALSE(has_finite_entries(x.middleCols(l, 1)));
      if (l > 0) CHECK(has_finite_entries(x.leftCols(l)));
    }
}

}  // namespace nprf::test::core_rows
