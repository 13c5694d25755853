// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// Y (n_q,p) = ((A B^T) o C) U with A (n_q,r), B (n_k,r), U (n_k,p), on all threads; a lag outside the table has weight
/// 0. Throws InvalidArgument for shapes that do not fit and for engines that this build does not have.
template <Real T>
void contract(Engine engine, const LagWeights<T>& lags, const MatrixView<T>& A, const MatrixView<T>& B,
              const MatrixView<T>& U, MatrixRef<T> Y);

/// The same, returning Y.
template <class T>
Matrix<T> contract(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                   const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U) {
  Matrix<T> Y(A.rows(), U.cols());
  contract<T>(engine, lags, A, B, U, MatrixRef<T>(Y));
  return Y;
}

/// Returns the gradients of a loss L through contract(), for G (n_q,p) = dL/dY. Takes two to three times as long as
/// contract(), and throws as it does.
template <class T>
Gradients<T> gradients(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                       const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U,
                       const std::type_identity_t<MatrixView<T>>& G);

}  // namespace nprf::toeplitz

#if !NPRF_SEPARATE
#include "nprf/toeplitz/contract_definition.hpp"
#endif
