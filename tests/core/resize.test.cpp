// SPDX-License-Identifier: MIT
#include "nprf/core/resize.hpp"

#include <limits>
#include <new>

#include "support/catch.hpp"
#include "support/sanitized.hpp"

namespace nprf::test::core_resize {

TEST_CASE("a matrix resized to the same number of scalars keeps its memory", "[core]") {
  Matrix<float> x(3, 4);
  const float* data = x.data();
  resize(x, 6, 2);
  CHECK(x.data() == data);
  CHECK((x.rows() == 6 && x.cols() == 2));
  Vector<double> y(5);
  resize(y, 7);
  CHECK(y.size() == 7);
  resize(y, 0);
  CHECK(y.size() == 0);
}

// AddressSanitizer stops a program whose allocation fails
#if !NPRF_TEST_SANITIZED
TEST_CASE("a matrix is empty if the allocation in resize fails", "[core]") {
  constexpr Index too_many = std::numeric_limits<Index>::max() / 64;
  Matrix<double> x(3, 4);
  CHECK_THROWS_AS(resize(x, too_many, 2), std::bad_alloc);
  CHECK(x.size() == 0);
  Vector<float> y(3);
  CHECK_THROWS_AS(resize(y, too_many), std::bad_alloc);
  CHECK(y.size() == 0);
}
#endif

TEST_CASE("assign gives a matrix the shape and the values of another", "[core]") {
  Matrix<float> x(3, 4);
  const Matrix<double> y = Matrix<double>::Random(2, 5);
  assign(x, y.cast<float>());
  CHECK(x == y.cast<float>());
}

}  // namespace nprf::test::core_resize
