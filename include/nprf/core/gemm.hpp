// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

template <class T>
struct StridedArray {
  T* data;
  Index stride;  // of rows, or of columns
};

// C += A B on raw arrays. C is row-major; order_a and order_b are the storage orders of A and B. It calls the function
// of Eigen (3.4 and 5.0) that each of Eigen's own threads calls. Eigen's threads are not used, because they split a
// matrix in a way that depends on their number.
template <Real T, int order_a, int order_b>
void add_product(Index rows, Index cols, Index depth, StridedArray<const T> a, StridedArray<const T> b,
                 StridedArray<T> c) {
  Eigen::internal::gemm_blocking_space<Eigen::RowMajor, T, T, Eigen::Dynamic, Eigen::Dynamic, Eigen::Dynamic> blocking(
      rows, cols, depth, 1, true);
  Eigen::internal::general_matrix_matrix_product<Index, T, order_a, false, T, order_b, false, Eigen::RowMajor, 1>::run(
      rows, cols, depth, a.data, a.stride, b.data, b.stride, c.data, 1, c.stride, T(1), blocking, nullptr);
}

template <class M>
constexpr int storage_order = std::remove_cvref_t<M>::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor;

}  // namespace detail

/// C += A B by one thread, for matrices, maps, blocks and their transposes; C is row-major. It allocates nothing: it
/// multiplies pieces small enough for the 128 KiB of stack that Eigen uses for packing.
template <class C, class A, class B>
void add_product(C&& c, const A& a, const B& b) {
  using T = typename std::remove_cvref_t<C>::Scalar;
  static_assert(std::remove_cvref_t<C>::IsRowMajor);
  static_assert(std::remove_cvref_t<C>::InnerStrideAtCompileTime == 1 && A::InnerStrideAtCompileTime == 1 &&
                B::InnerStrideAtCompileTime == 1);
  eigen_assert(c.rows() == a.rows() && c.cols() == b.cols() && a.cols() == b.rows());
  constexpr Index deep = 128, wide = 131072 / deep / static_cast<Index>(sizeof(T));
  const auto at = [](const auto& x, Index i, Index j) {
    return x.data() +
           (std::remove_cvref_t<decltype(x)>::IsRowMajor ? i * x.outerStride() + j : j * x.outerStride() + i);
  };
  for (Index i = 0; i < c.rows(); i += wide)
    for (Index j = 0; j < c.cols(); j += wide)
      for (Index k = 0; k < a.cols(); k += deep)
        detail::add_product<T, detail::storage_order<A>, detail::storage_order<B>>(
            std::min(wide, c.rows() - i), std::min(wide, c.cols() - j), std::min(deep, a.cols() - k),
            {at(a, i, k), a.outerStride()}, {at(b, k, j), b.outerStride()},
            {c.data() + i * c.outerStride() + j, c.outerStride()});
}

/// C = A B.
template <class C, class A, class B>
void set_product(C&& c, const A& a, const B& b) {
  c.setZero();
  add_product(c, a, b);
}

}  // namespace nprf
