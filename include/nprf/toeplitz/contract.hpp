// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/plan/choose.hpp"
#include "nprf/toeplitz/product.hpp"

namespace nprf::toeplitz {

namespace detail {

// calls use(product, factors, team) for tokens without gaps
template <Real T, class Use>
void with_product(Engine engine, LagWeightsView<T> lags, const MatrixView<T>& A, const MatrixView<T>& B,
                  const MatrixView<T>& U, Use&& use) {
  const ProductShape shape = product_shape<T>(A, B, U);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(worthwhile_threads(dense_cost<T>(shape))));
  const Team team(workspaces);
  const Product<T> product(engine, lags, shape, team);
  use(product, Factors<T>::without_gaps(A, B, U), team);
}

}  // namespace detail

/// Y (n_q,p) = ((A B^T) o C) U with A (n_q,r), B (n_k,r), U (n_k,p), on all threads; a lag outside the table has weight
/// 0. Throws InvalidArgument for shapes that do not fit and for engines that this build does not have.
template <Real T>
void contract(Engine engine, const LagWeights<T>& lags, const MatrixView<T>& A, const MatrixView<T>& B,
              const MatrixView<T>& U, MatrixRef<T> Y) {
  require(Y.rows() == A.rows() && Y.cols() == U.cols(), "Y: expected ", A.rows(), " x ", U.cols(), ", got ", Y.rows(),
          " x ", Y.cols());
  // equal weights at an end are a tail here, but not in gradients(), where each has its own dc
  detail::with_product<T>(
      engine, lags.view().with_equal_ends(), A, B, U,
      [&](const auto& product, const auto& factors, const Team& team) { product.contract(factors, Y, team); });
}

/// The same, returning Y.
template <class T>
Matrix<T> contract(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                   const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U) {
  Matrix<T> Y(A.rows(), U.cols());
  contract<T>(engine, lags, A, B, U, MatrixRef<T>(Y));
  return Y;
}

/// The gradients of contract() for G (n_q,p) = dL/dY, in two to three times its time. Throws as contract() does.
template <class T>
Gradients<T> gradients(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                       const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U,
                       const std::type_identity_t<MatrixView<T>>& G) {
  require(G.rows() == A.rows() && G.cols() == U.cols(), "G: expected ", A.rows(), " x ", U.cols(), ", got ", G.rows(),
          " x ", G.cols());
  Gradients<T> out(product_shape<T>(A, B, U));
  detail::with_product<T>(engine, lags.view(), A, B, U,
                          [&](const auto& product, const auto& factors, const Team& team) {
                            product.gradients(factors, G, {out.dA, out.dB, out.dU, out.dc}, {}, team);
                          });
  return out;
}

}  // namespace nprf::toeplitz
