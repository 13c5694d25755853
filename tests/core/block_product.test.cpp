// SPDX-License-Identifier: MIT
#include "nprf/core/block_product.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_block_product {

namespace {

// integers, so that every sum is exact
template <class T>
Matrix<T> integers(Index rows, Index cols, std::uint64_t seed) {
  return (8 * normal<double>(rows, cols, seed)).array().round().matrix().template cast<T>();
}

// a copy of x with NaN around it, so that reads and writes outside x are detected
template <class T>
struct Framed {
  Framed(const Matrix<T>& x, Index left)
      : whole(Matrix<T>::Constant(x.rows() + 2, x.cols() + left + 1, std::numeric_limits<T>::quiet_NaN())),
        inner(whole.block(1, left, x.rows(), x.cols())) {
    inner = x;
  }
  Framed(const Framed&) = delete;
  Framed& operator=(const Framed&) = delete;

  Matrix<T> whole;
  Eigen::Block<Matrix<T>> inner;
};

// a b^T by blocks
template <class T>
Matrix<T> by_blocks(const MatrixView<T>& a, const MatrixView<T>& b) {
  Workspace workspace;
  const Index packs = packs_for<T>(b.rows());
  RowBlocks<T> A(a.cols(), workspace);
  Transposed<T> B(b.cols(), b.rows(), workspace);
  A.set(a);
  B.set(b, packs);
  Matrix<T> c = Matrix<T>::Constant(a.rows(), b.rows(), 17);
  for (Index i = 0; i < a.rows(); i += Block<T>::rows)
    multiply_block(a.cols(), packs, A.block(i), B.factor(), [&](Index k, Index j, const Pack<T>& pack) {
      std::vector<T> x(static_cast<std::size_t>(Pack<T>::size));
      pack.store(x.data());
      for (Index u = 0; u < Pack<T>::size; ++u) {
        const T each = x[static_cast<std::size_t>(u)];
        if (i + k < c.rows() && j + u < c.cols())
          c(i + k, j + u) = each;
        else
          CHECK(each == 0);  // padding after the last row or the last column
      }
    });
  return c;
}

}  // namespace

TEMPLATE_TEST_CASE("blocks of rows times a transposed matrix give the exact product of integers", "[core]",
                   NPRF_TEST_SCALARS) {
  for (const Index rows : {1, 5, 6, 7, 12, 20})
    for (const Index cols : {1, 3, 4, 8, 9, 16, 17, 31, 64, 65, 100})
      for (const Index depth : {0, 1, 4, 7, 8, 33}) {
        INFO(rows << " x " << depth << " x " << cols);
        const Matrix<TestType> a = integers<TestType>(rows, depth, 1), b = integers<TestType>(cols, depth, 2);
        CHECK(by_blocks<TestType>(a, b) == a * b.transpose());
      }
}

TEMPLATE_TEST_CASE("block products read nothing outside their matrices, and no bit depends on their addresses",
                   "[core]", NPRF_TEST_SCALARS) {
  const Matrix<TestType> a = normal<TestType>(13, 37, 1), b = normal<TestType>(29, 37, 2);
  const Matrix<TestType> expected = by_blocks<TestType>(a, b);
  for (const Index left : {0, 1, 2, 3, 5, 8}) {
    const Framed<TestType> A(a, left), B(b, 2 * left);
    CHECK(same_bits(by_blocks<TestType>(A.inner, B.inner), expected));
  }
}

TEMPLATE_TEST_CASE("a product with a right factor read in place is added to the result", "[core]", NPRF_TEST_SCALARS) {
  constexpr Index rows = Block<TestType>::rows;
  for (const Index depth : {1, 2, 7, 8, 9, 50})
    for (const Index cols : {1, 2, 3, 4, 5, 8, 11, 16, 31, 65, 70}) {
      const Index width = packs_for<TestType>(depth) * Pack<TestType>::size;
      Matrix<TestType> a = Matrix<TestType>::Zero(rows, width);
      a.leftCols(depth) = integers<TestType>(rows, depth, 1);
      const Framed<TestType> x(integers<TestType>(depth, cols, 2), 3);
      Workspace workspace;
      RightRows<TestType> right(cols, 50, workspace);
      right.set(x.inner);
      for (const Index count : {Index{1}, rows - 1, rows}) {
        INFO("depth " << depth << " cols " << cols << " rows " << count);
        const Matrix<TestType> before = integers<TestType>(count, cols, 3);
        Framed<TestType> out(before, 1);
        right.add_product(LeftFactor<TestType, Index, Step<1>>{a.data(), width, {}}, count, &out.inner(0, 0),
                          out.inner.outerStride());
        CHECK(out.inner == before + a.topLeftCorner(count, depth) * x.inner);
        CHECK(out.whole.array().isNaN().count() == out.whole.size() - out.inner.size());
      }
    }
}

}  // namespace nprf::test::core_block_product
