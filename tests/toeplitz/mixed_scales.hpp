// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "nprf/core/team.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

/// Columns of very different magnitudes: small ones beside large ones must keep their digits.
namespace nprf::test {

/// The worst error of a product of which columns of A share their rounding: each row of a column of Y may be as far off
/// as the worst of its rows.
template <class T>
double columns_error(Engine engine, const LagWeights<T>& c, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U,
                     const Matrix<T>& got) {
  const std::vector<Index> rows = all_rows(A.rows());
  const Product reference = reference_product(c, A, B, U, rows);
  Matrix<double> tolerance = product_tolerance(engine, c, A, B, U, rows, reference);
  for (Index p = 0; p < tolerance.cols(); ++p) tolerance.col(p).setConstant(tolerance.col(p).maxCoeff());
  return worst_ratio(got, reference.values, tolerance);
}

/// The product and its gradients with every other column of one factor, or every other register full of them, so many
/// times smaller; c's lags from `last_lag` + 1 on are zero.
template <class T>
void check_mixed_scales(Engine engine, Index n_q, Index n_k, Index last_lag) {
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  const Team team(workspace);
  std::vector<double> sizes{1e-20, 1e-30};
  if (sizeof(T) == 8) sizes = {1e-30, 1e-200};
  for (const double size : sizes)
    for (const Index run : {Index{1}, W})  // of columns of one size
      for (const Index odd : {0, 1})
        for (const char which : {'A', 'B', 'U', 'G'}) {
          InSlots<T> x(n_q, n_k, Slots{n_q}, Slots{n_k}, W + 2, 2 * W + 4);
          for (Index lag = last_lag + 1; lag <= x.c.last(); ++lag) x.c.values[lag - x.c.first] = 0;
          Matrix<T>& X = which == 'A' ? x.A : which == 'B' ? x.B : which == 'U' ? x.U : x.G;
          for (Index k = 0; k < X.cols(); ++k)
            if (k / run % 2 == odd) X.col(k) *= static_cast<T>(size);
          INFO(which << " with columns of " << size << ", " << run << " in a row, from " << (odd == 1 ? run : 0));
          CHECK(product_error(engine, x.c, x.A, x.B, x.U, x.contract(make_product(engine), team)) <= 1);
          toeplitz::Gradients<T> d = x.gradients(make_product(engine), team);
          CHECK(columns_error(engine, x.c, x.G, x.U, x.B, d.dA) <= 1);
          CHECK(product_error(engine, transposed(x.c), x.U, x.G, x.A, d.dB) <= 1);
          CHECK(product_error(engine, transposed(x.c), x.B, x.A, x.G, d.dU) <= 1);
          // lags without a weight may have no gradient
          d.dc.tail(n_k - 1 - last_lag) = lag_sums(x.A, x.B, x.U, x.G).tail(n_k - 1 - last_lag).template cast<T>();
          CHECK(lag_error(engine, x.A, x.B, x.U, x.G, d.dc) <= 1);
        }
}

}  // namespace nprf::test
