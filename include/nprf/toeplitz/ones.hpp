// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The denominators of attention are the product for a column of ones, its numerators the product for the values. Each
/// engine computes both in one call, contract(x, Y, team, sums). These are two ways to do it for any engine.
namespace nprf::toeplitz {

/// [U 1] (n,p+1).
template <Real T>
MatrixMap<T> with_ones(const MatrixView<T>& U, const Team& team) {
  auto all = team.workspace().template matrix<T>(U.rows(), U.cols() + 1);
  team.run_tiles(U.rows(), [&](Index i0, Index rows, Workspace&) {
    all.block(i0, 0, rows, U.cols()) = U.middleRows(i0, rows);
    all.block(i0, U.cols(), rows, 1).setOnes();
  });
  return all;
}

/// sums (n_q) as a column.
template <Real T>
Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> as_column(T* sums, Index n_q) {
  return {sums, n_q, 1, Eigen::OuterStride<>(1)};
}

/// sums (n_q) = ((A B^T) o C) 1, as a separate product.
template <class E, Real T>
void contract_ones(const E& engine, const Factors<T>& x, const Team& team, T* sums) {
  const Workspace::Scope scope(team.workspace());
  auto ones = team.workspace().template matrix<T>(x.U.rows(), 1);
  ones.setOnes();
  engine.contract(x.with_values(ones), as_column(sums, x.A.rows()), team);
}

/// [Y sums] = ((A B^T) o C) [U 1], one product of p + 1 columns.
template <class E, Real T>
void contract_with_ones(const E& engine, const Factors<T>& x, MatrixRef<T>& Y, const Team& team, T* sums) {
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  const Index n_q = x.A.rows(), p = x.U.cols();
  auto all = workspace.template matrix<T>(n_q, p + 1);
  engine.contract(x.with_values(with_ones<T>(x.U, team)), all, team);
  team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
    Y.middleRows(i0, rows) = all.block(i0, 0, rows, p);
    as_column(sums, n_q).middleRows(i0, rows) = all.block(i0, p, rows, 1);
  });
}

}  // namespace nprf::toeplitz
