// SPDX-License-Identifier: MIT
#include "nprf/core/shapes.hpp"

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::core_shapes {

namespace {

Matrix<float> zeros(Index rows, Index cols) { return Matrix<float>::Zero(rows, cols); }

}  // namespace

TEST_CASE("the shape of a product is that of its factors", "[core]") {
  const ProductShape shape = product_shape<float>(zeros(3, 5), zeros(7, 5), zeros(7, 2));
  CHECK(shape.n_q == 3);
  CHECK(shape.n_k == 7);
  CHECK(shape.r == 5);
  CHECK(shape.p == 2);
}

TEST_CASE("a product is empty if it has no queries, no keys or no features", "[core]") {
  CHECK_FALSE(ProductShape{1, 1, 1, 1}.empty());
  CHECK_FALSE(ProductShape{1, 1, 1, 0}.empty());
  CHECK(ProductShape{0, 1, 1, 1}.empty());
  CHECK(ProductShape{1, 0, 1, 1}.empty());
  CHECK(ProductShape{1, 1, 0, 1}.empty());
  CHECK(product_shape<double>(Matrix<double>(0, 5), Matrix<double>(0, 5), Matrix<double>(0, 0)).empty());
}

TEST_CASE("product_shape rejects factors whose shapes do not match", "[core]") {
  check_invalid([] { product_shape<float>(zeros(3, 5), zeros(7, 6), zeros(7, 2)); },
                {"B: expected 5 columns", "got 6"});
  check_invalid([] { product_shape<float>(zeros(3, 5), zeros(7, 5), zeros(8, 2)); }, {"U: expected 7 rows", "got 8"});
}

TEST_CASE("the shape of an attention call is that of its queries, keys and values", "[core]") {
  const AttentionShape shape = attention_shape<float>(zeros(3, 5), zeros(7, 5), zeros(7, 2));
  CHECK(shape.n_q == 3);
  CHECK(shape.n_k == 7);
  CHECK(shape.d == 5);
  CHECK(shape.d_v == 2);
}

TEST_CASE("attention_shape rejects queries, keys and values whose shapes do not match", "[core]") {
  check_invalid([] { attention_shape<float>(zeros(3, 5), zeros(7, 6), zeros(7, 2)); },
                {"keys: expected 5 columns", "got 6"});
  check_invalid([] { attention_shape<float>(zeros(3, 5), zeros(7, 5), zeros(8, 2)); },
                {"values: expected 7 rows", "got 8"});
}

}  // namespace nprf::test::core_shapes
