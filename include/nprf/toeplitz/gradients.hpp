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
/// Outside the support of c an engine may leave dc zero. In a tail (lag_weights.hpp) two of its lags may stand for all:
/// their dc is such that the sums of c dc and of k c dc over the tail's lags e + k are right, which is all that the
/// parameters of a straight line can ask.
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

/// The same in the caller's storage; dc may be empty, where nobody asks for it.
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

/// What the gradients of keys and lags are sums of, in the caller's storage: of positive sizes s_i, one a query,
///
///     keys_j = sum_i c[j-i] (A_i.B_j) s_i    lags_l = sum over j - i = l of (A_i.B_j) s_i
///
/// by the same engine, as its gradients for a column of ones beside U and the sizes beside G. U's last column must be
/// ones, and that of G no larger than the sizes: they may share their rounding in dB, dU and dc, though not in dA.
template <Real T>
struct GradientSizes {
  const T* rows = nullptr;  // (n_q)
  T* keys = nullptr;        // (n_k)
  T* lags = nullptr;        // (n_q + n_k - 1) of the slots

  explicit operator bool() const { return rows != nullptr; }
};

}  // namespace nprf::toeplitz
