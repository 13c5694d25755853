// SPDX-License-Identifier: MIT
#include "nprf/core/gemm.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "nprf/core/types.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_gemm {

namespace {

// integers small enough that a sum of 700 products is exact, and large enough that a smaller scalar would round them
template <Real T>
Matrix<T> integers(Index rows, Index cols, std::uint64_t seed) {
  const double largest = sizeof(T) == 4 ? 100 : 1e6;
  return (normal<double>(rows, cols, seed) * (largest / 4))
      .array()
      .round()
      .cwiseMin(largest)
      .cwiseMax(-largest)
      .matrix()
      .template cast<T>();
}

// C + A B by three loops
template <class C, class A, class B>
Matrix<double> naive_product(const C& c, const A& a, const B& b) {
  Matrix<double> sum = c.template cast<double>();
  for (Index i = 0; i < sum.rows(); ++i)
    for (Index j = 0; j < sum.cols(); ++j)
      for (Index k = 0; k < a.cols(); ++k) sum(i, j) += static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
  return sum;
}

template <class C, class A, class B>
void check_into(C&& c, const A& a, const B& b) {
  using T = typename std::remove_cvref_t<C>::Scalar;
  const Matrix<T> before = integers<T>(a.rows(), b.cols(), 9);
  c = before;
  add_product(c, a, b);
  CHECK(c.template cast<double>() == naive_product(before, a, b));
  c.setConstant(std::numeric_limits<T>::quiet_NaN());
  set_product(c, a, b);
  CHECK(c.template cast<double>() == naive_product(Matrix<T>::Zero(a.rows(), b.cols()).eval(), a, b));
}

// all four combinations of storage orders
template <Real T>
void check_orders(Index rows, Index cols, Index depth) {
  INFO(rows << " x " << depth << " x " << cols);
  const Matrix<T> A = integers<T>(rows, depth, 1), B = integers<T>(depth, cols, 2);
  const Matrix<T> At = A.transpose(), Bt = B.transpose();
  Matrix<T> C(rows, cols);
  check_into(C, A, B);
  check_into(C, A, Bt.transpose());
  check_into(C, At.transpose(), B);
  check_into(C, At.transpose(), Bt.transpose());
}

template <Real T>
void check_sizes() {
  // around the sizes of the tiles in Eigen's kernel
  for (const Index rows : {1, 2, 3, 4, 7, 8, 9, 13})
    for (const Index cols : {1, 2, 3, 7, 8, 9, 16, 17, 25})
      for (const Index depth : {1, 2, 3, 8, 9}) check_orders<T>(rows, cols, depth);
  // sizes that Eigen divides into blocks for its caches
  for (const auto& [rows, cols, depth] : std::vector<std::array<Index, 3>>{
           {128, 128, 32}, {128, 17, 128}, {127, 33, 129}, {3, 5, 700}, {700, 3, 5}, {3, 700, 5}, {130, 70, 700}})
    check_orders<T>(rows, cols, depth);
}

// a matrix inside a larger one that is NaN around it
template <Real T>
struct Framed {
  Framed(const Matrix<T>& x, Index top, Index left)
      : whole(Matrix<T>::Constant(x.rows() + top + 2, x.cols() + left + 3, std::numeric_limits<T>::quiet_NaN())),
        inner(whole.block(top, left, x.rows(), x.cols())) {
    inner = x;
  }
  Framed(const Framed&) = delete;
  Framed& operator=(const Framed&) = delete;

  // the frame is unchanged
  bool intact() const { return whole.array().isNaN().count() == whole.size() - inner.size() && inner.allFinite(); }

  Matrix<T> whole;
  Eigen::Block<Matrix<T>> inner;
};

template <Real T>
void check_blocks() {
  for (const auto& [rows, cols, depth] : std::vector<std::array<Index, 3>>{{1, 1, 1}, {5, 7, 3}, {33, 17, 40}}) {
    INFO(rows << " x " << depth << " x " << cols);
    Framed<T> A(integers<T>(rows, depth, 1), 1, 2), B(integers<T>(depth, cols, 2), 3, 1);
    Framed<T> At(integers<T>(depth, rows, 3), 2, 5), Bt(integers<T>(cols, depth, 4), 1, 1);
    Framed<T> C(Matrix<T>::Zero(rows, cols), 2, 3);
    check_into(C.inner, A.inner, B.inner);
    check_into(C.inner, At.inner.transpose(), B.inner);
    check_into(C.inner, A.inner, Bt.inner.transpose());
    check_into(C.inner, At.inner.transpose(), Bt.inner.transpose());
    // the arguments of a function that accepts views
    const MatrixView<T> a = A.inner, b = B.inner;
    check_into(MatrixRef<T>(C.inner), a, b);
    check_into(MatrixRef<T>(C.inner).middleRows(0, rows), a.middleRows(0, rows),
               Bt.inner.middleRows(0, cols).transpose());
    CHECK(A.intact());
    CHECK(B.intact());
    CHECK(At.intact());
    CHECK(Bt.intact());
    CHECK(C.intact());
  }
}

template <Real T>
void check_empty() {
  for (const auto& [rows, cols] : std::vector<std::array<Index, 2>>{{0, 0}, {0, 3}, {3, 0}})
    check_orders<T>(rows, cols, 4);
  const Matrix<T> A(3, 0), B(0, 4), before = integers<T>(3, 4, 9);
  Matrix<T> C = before;
  add_product(C, A, B);
  CHECK(C == before);
  set_product(C, A, B);
  CHECK(C == Matrix<T>::Zero(3, 4));
}

// each entry is a sum of `depth` products: its error is at most depth eps times the sum of their magnitudes
template <Real T>
void check_rounding() {
  for (const Index depth : {1, 10, 300}) {
    const Matrix<T> A = normal<T>(20, depth, 1), B = normal<T>(depth, 30, 2), zero = Matrix<T>::Zero(20, 30);
    Matrix<T> C(20, 30);
    set_product(C, A, B);
    const Matrix<double> tolerance =
        static_cast<double>(depth) * epsilon<T> * naive_product(zero, A.cwiseAbs().eval(), B.cwiseAbs().eval());
    CHECK(worst_ratio(C, naive_product(zero, A, B), tolerance) <= 1);
  }
}

// the same matrices at other addresses and strides
template <Real T>
void check_addresses() {
  const Matrix<T> A = normal<T>(37, 29, 1), B = normal<T>(29, 41, 2);
  Matrix<T> expected(37, 41);
  set_product(expected, A, B);
  for (const Index left : {0, 1, 2, 3, 5}) {
    Framed<T> a(A, 1, left), b(B, 1, 2 * left), c(expected, 1, 3 * left);
    set_product(c.inner, a.inner, b.inner);
    CHECK(same_bits<T>(c.inner, expected));
  }
}

}  // namespace

TEST_CASE("a product is that of three loops, for all storage orders", "[core]") {
  check_sizes<float>();
  check_sizes<double>();
}

TEST_CASE("a product of blocks neither reads nor writes outside them", "[core]") {
  check_blocks<float>();
  check_blocks<double>();
}

TEST_CASE("a product of depth 0 is zero, and adding it changes nothing", "[core]") {
  check_empty<float>();
  check_empty<double>();
}

TEST_CASE("the rounding error of a product is that of a sum of its depth", "[core]") {
  check_rounding<float>();
  check_rounding<double>();
}

TEST_CASE("the bits of a product do not depend on the addresses of its matrices", "[core]") {
  check_addresses<float>();
  check_addresses<double>();
}

TEST_CASE("a non-finite factor affects only its row or its column of a product", "[core]") {
  Matrix<float> A = normal<float>(9, 20, 1), B = normal<float>(20, 11, 2), C(9, 11);
  A(4, 7) = std::numeric_limits<float>::quiet_NaN();
  B(3, 10) = std::numeric_limits<float>::infinity();
  set_product(C, A, B);
  for (Index i = 0; i < 9; ++i)
    for (Index j = 0; j < 11; ++j) CHECK(std::isfinite(C(i, j)) == (i != 4 && j != 10));
}

}  // namespace nprf::test::core_gemm
