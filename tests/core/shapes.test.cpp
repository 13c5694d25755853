// SPDX-License-Identifier: MIT
#include "nprf/core/shapes.hpp"

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::core_shapes {

namespace {

Matrix<float> zeros(Index rows, Index cols) { return Matrix<float>::Zero(rows, cols); }

}  // namespace

TEST_CASE("product_shape rejects factors whose shapes do not match", "[core]") {
  check_invalid([] { product_shape<float>(zeros(3, 5), zeros(7, 6), zeros(7, 2)); },
                {"B: expected 5 columns", "got 6"});
  check_invalid([] { product_shape<float>(zeros(3, 5), zeros(7, 5), zeros(8, 2)); }, {"U: expected 7 rows", "got 8"});
}

}  // namespace nprf::test::core_shapes
