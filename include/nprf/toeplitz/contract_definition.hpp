// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/contract.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/plan/choose.hpp"
#include "nprf/toeplitz/product.hpp"

namespace nprf::toeplitz {

namespace detail {

// calls use(product, factors, team) for tokens in slots 0, 1, ..., without gaps
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

template <Real T>
void contract(Engine engine, const LagWeights<T>& lags, const MatrixView<T>& A, const MatrixView<T>& B,
              const MatrixView<T>& U, MatrixRef<T> Y) {
  require(Y.rows() == A.rows() && Y.cols() == U.cols(), "Y: expected ", A.rows(), " x ", U.cols(), ", got ", Y.rows(),
          " x ", Y.cols());
  // equal weights at an end of the table become a tail; not in gradients(), where each weight has its own dc
  detail::with_product<T>(
      engine, lags.view().with_equal_ends(), A, B, U,
      [&](const auto& product, const auto& factors, const Team& team) { product.contract(factors, Y, team); });
}

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
