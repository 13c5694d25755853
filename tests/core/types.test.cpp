// SPDX-License-Identifier: MIT
#include "nprf/core/types.hpp"

#include <concepts>

#include "support/catch.hpp"

namespace nprf::test::core_types {

static_assert(Real<float> && Real<double>);
static_assert(!Real<long double> && !Real<int> && !Real<const float>);
static_assert(std::convertible_to<Matrix<float>, MatrixView<float>>);
static_assert(!std::convertible_to<Matrix<double>, MatrixView<float>>, "a view never changes the scalar");
static_assert(!std::convertible_to<const Matrix<float>&, MatrixRef<float>>, "a const matrix is not writable");

namespace {

template <class T>
const T* data_of(const MatrixView<T>& view) {
  return view.data();
}

template <class T>
Matrix<T> counted(Index rows, Index cols) {
  Matrix<T> x(rows, cols);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(i);
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("the scalars of a token are contiguous in a Matrix", "[core]", NPRF_TEST_SCALARS) {
  const Matrix<TestType> x = counted<TestType>(3, 4);
  CHECK(x(0, 1) == 1);
  CHECK(x(1, 0) == 4);
}

TEMPLATE_TEST_CASE("a view of a row-major matrix, map or block copies nothing", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> x = counted<T>(5, 7);
  CHECK(data_of<T>(x) == x.data());
  CHECK(data_of<T>(x.middleRows(1, 3)) == &x(1, 0));
  CHECK(data_of<T>(x.block(2, 3, 2, 4)) == &x(2, 3));
  CHECK(data_of<T>(x.middleCols(2, 1)) == &x(0, 2));
  CHECK(data_of<T>(Eigen::Map<const Matrix<T>>(x.data(), 7, 5)) == x.data());
  using Strided = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;
  CHECK(data_of<T>(Strided(x.data(), 2, 3, Eigen::OuterStride<>(14))) == x.data());

  const MatrixView<T> block = x.block(2, 3, 2, 4);
  CHECK(block.rows() == 2);
  CHECK(block.cols() == 4);
  CHECK(block.outerStride() == 7);
  CHECK(block(1, 3) == x(3, 6));
}

TEMPLATE_TEST_CASE("a view of any other expression is a copy of its values", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> x = counted<T>(5, 7);
  const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> column_major = x;
  const auto check = [&](const MatrixView<T>& view) {
    CHECK(view.innerStride() == 1);
    CHECK(view == x);
  };
  check(column_major);
  check(x.transpose().eval().transpose());
  check(T(2) * x - x);
}

TEMPLATE_TEST_CASE("a writable view writes into the caller's block", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Matrix<T> x = Matrix<T>::Zero(4, 5);
  const auto fill = [](MatrixRef<T> y) { y.setOnes(); };
  fill(x.block(1, 2, 2, 3));
  CHECK(x.sum() == 6);
  CHECK(x.block(1, 2, 2, 3).minCoeff() == 1);
}

}  // namespace nprf::test::core_types
