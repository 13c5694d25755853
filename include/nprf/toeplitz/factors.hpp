// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf::toeplitz {

/// The rows begin..end-1 of a matrix; none if end <= begin.
struct RowRange {
  Index begin, end;

  Index size() const { return end - begin; }
};

/// References to the factors of Y = ((A B^T) o C) U, and the slots of their rows.
///
/// `key_log_scales` are optional log-scales e_j of the keys: the features of key j are then exp(e_j) B_j. Row i of Y is
/// divided by exp(M_i), where M_i is the largest log-scale among the keys up to the last slot at which row i has a
/// weight. The numerators and the denominator of a row share this factor, so it cancels. Each key's features can
/// therefore be scaled by their own maximum. Only engines with accepts_key_log_scales (engine.hpp) support log-scales.
template <class T>
struct Factors {
  MatrixView<T> A, B, U;                   // (n_q,r) (n_k,r) (n_k,p)
  Placement queries, keys;                 // the slots of the rows of A; of the rows of B and U
  const double* key_log_scales = nullptr;  // (n_k); null: all are 0

  /// The factors of tokens that fill the slots 0, 1, ... in order.
  static Factors without_gaps(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U) {
    return {A, B, U, Slots{A.rows()}, Slots{B.rows()}};
  }

  /// The same factors for other values U (n_k,p).
  Factors with_values(const MatrixView<T>& values) const { return {A, B, values, queries, keys, key_log_scales}; }

  /// The same factors without the tokens that have no slot.
  Factors in_slots() const {
    return {A.bottomRows(queries.slots.count),
            B.bottomRows(keys.slots.count),
            U.bottomRows(keys.slots.count),
            queries.slots,
            keys.slots,
            key_log_scales ? key_log_scales + keys.outside : nullptr};
  }
};

/// The gradients of a loss L through Y = ((A B^T) o C) U, for G = dL/dY. dA, dB and dU are products of the same form
/// with the roles exchanged:
///
///     dA = ((G U^T) o C) B    dB = ((U G^T) o C^T) A    dU = ((B A^T) o C^T) G
///     dc[l] = sum over j - i = l of (A_i.B_j)(G_i.U_j)
///
/// Outside the support of c an engine may leave dc zero. The gradients of the parameters of a linear bias depend only
/// on the sums of c dc and of k c dc over the lags of a tail (lag_weights.hpp), where k is the distance of a lag from
/// the begin of the tail. So in a tail an engine may set dc at two lags only, to values that give these two sums.
template <Real T>
struct Gradients {
  explicit Gradients(const ProductShape& shape)
      : dA(Matrix<T>::Zero(shape.n_q, shape.r)),
        dB(Matrix<T>::Zero(shape.n_k, shape.r)),
        dU(Matrix<T>::Zero(shape.n_k, shape.p)),
        dc(Vector<T>::Zero(std::max<Index>(shape.n_q + shape.n_k - 1, 0))) {}

  Matrix<T> dA, dB, dU;  // (n_q,r) (n_k,r) (n_k,p)
  Vector<T> dc;          // dc of lag l is at index l + n_q - 1
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

/// The sums K_j and S_l, in the caller's storage, with which the rounding errors of the gradients of keys and lags are
/// compared. The rows have positive sizes s_i, one for each query, and
///
///     keys_j = K_j = sum_i c[j-i] (A_i.B_j) s_i    lags_l = S_l = sum over j - i = l of (A_i.B_j) s_i
///
/// The engine computes them as the dU and dc of one more column, of ones in U and of the sizes in G. The last column of
/// U must be ones, and the last column of G no larger than the sizes. This last column and the additional one may share
/// their rounding errors in dB, dU and dc, but not in dA.
template <Real T>
struct GradientSizes {
  const T* rows = nullptr;  // (n_q)
  T* keys = nullptr;        // (n_k)
  T* lags = nullptr;        // (n_q + n_k - 1) of all lags of the slots

  explicit operator bool() const { return rows != nullptr; }
};

/// Returns [U 1] (n,p+1) in the workspace. The product with the column of ones gives the denominators of attention.
template <Real T>
MatrixMap<T> with_ones(const MatrixView<T>& U, const Team& team) {
  auto all = team.workspace().template matrix<T>(U.rows(), U.cols() + 1);
  team.run_tiles(U.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) *std::ranges::copy(row_of(U, i), &all(i, 0)).out = 1;
  });
  return all;
}

template <Real T>
Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> as_column(T* sums, Index n_q) {
  return {sums, n_q, 1, Eigen::OuterStride<>(1)};
}

/// Writes sums (n_q) = ((A B^T) o C) 1, by a separate product.
template <class E, Real T>
void contract_ones(const E& engine, const Factors<T>& x, const Team& team, T* sums) {
  const Workspace::Scope scope(team.workspace());
  auto ones = team.workspace().template matrix<T>(x.U.rows(), 1);
  ones.setOnes();
  engine.contract(x.with_values(ones), as_column(sums, x.A.rows()), team);
}

/// Writes [Y sums] = ((A B^T) o C) [U 1], by one product of p + 1 columns.
template <class E, Real T>
void contract_with_ones(const E& engine, const Factors<T>& x, MatrixRef<T>& Y, const Team& team, T* sums) {
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  const Index n_q = x.A.rows(), p = x.U.cols();
  auto all = workspace.template matrix<T>(n_q, p + 1);
  engine.contract(x.with_values(with_ones<T>(x.U, team)), all, team);
  team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) {
      std::copy_n(&all(i, 0), p, writable_row(Y, i).data());
      sums[i] = all(i, p);
    }
  });
}

}  // namespace nprf::toeplitz
