// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/shapes.hpp"

namespace nprf::toeplitz {

/// The gradients of Y = ((A B^T) o C) U for G = dL/dY. Each is the same product with the roles exchanged:
///
///     dA = ((G U^T) o C) B    dB = ((U G^T) o C^T) A    dU = ((B A^T) o C^T) G
///     dc[l] = sum over j - i = l of (A_i.B_j)(G_i.U_j)
///
/// Outside the support of c an engine may leave dc zero. The gradients of the parameters of a linear bias depend only
/// on the sums of c dc and of k c dc over the lags e + k of a tail (lag_weights.hpp). So in a tail an engine may set dc
/// at two lags only, to values that give these two sums.
template <Real T>
struct Gradients {
  explicit Gradients(const ProductShape& shape)
      : dA(Matrix<T>::Zero(shape.n_q, shape.r)),
        dB(Matrix<T>::Zero(shape.n_k, shape.r)),
        dU(Matrix<T>::Zero(shape.n_k, shape.p)),
        dc(Vector<T>::Zero(std::max<Index>(shape.n_q + shape.n_k - 1, 0))) {}

  Matrix<T> dA, dB, dU;  // (n_q,r) (n_k,r) (n_k,p)
  Vector<T> dc;          // of the lag l at l + n_q - 1
};

/// The gradients in the caller's storage; dc may be empty, if it is not requested.
template <Real T>
struct GradientRefs {
  MatrixRef<T> dA, dB, dU;
  Eigen::Ref<Vector<T>> dc;

  void set_zero() {
    dA.setZero();
    dB.setZero();
    dU.setZero();
    dc.setZero();
  }
};

/// The sums that the gradients of keys and lags are compared with, in the caller's storage. For positive sizes s_i, one
/// for each query,
///
///     keys_j = sum_i c[j-i] (A_i.B_j) s_i    lags_l = sum over j - i = l of (A_i.B_j) s_i
///
/// They are computed by the same engine, as the dU and dc of one more column: ones after U, and the sizes after G. The
/// last column of U must be ones, and that of G no larger than the sizes: these two may share their rounding errors in
/// dB, dU and dc, but not in dA.
template <Real T>
struct GradientSizes {
  const T* rows = nullptr;  // (n_q)
  T* keys = nullptr;        // (n_k)
  T* lags = nullptr;        // (n_q + n_k - 1) of all lags of the slots

  explicit operator bool() const { return rows != nullptr; }
};

}  // namespace nprf::toeplitz
