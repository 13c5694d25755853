// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nprf/core/lag_weights.hpp"
#include "nprf/position/position_view.hpp"
#include "support/product.hpp"
#include "support/threads.hpp"

namespace nprf::test {

/// attention_tolerance() for the features A (n_q,r) of the queries, the features B (keys.size(),r) of the unmasked keys
/// `keys`, and all values (n_k,d_v).
template <Real T>
Matrix<double> features_tolerance(const Matrix<T>& A, const Matrix<T>& B, const std::vector<Index>& keys,
                                  const Matrix<T>& all_v, const Matrix<T>& y, const PositionView<T>& position,
                                  Direction direction, Engine engine, Index offset) {
  const Index n_q = A.rows(), n_k = B.rows(), d_v = all_v.cols();
  Matrix<double> tolerance = Matrix<double>::Zero(n_q, d_v);
  const Threads one(1);  // the products are too small for Eigen's threads
  const Matrix<T> v = pick(all_v, keys);

  // E extra tokens without slots, and the slots of the others
  const Index E = position.extra().rows();
  const auto slot = [&](Index token) { return position.slot(token - E); };
  const Index q_slots = n_q > E ? slot(n_q - 1) + 1 : 0, k_slots = all_v.rows() > E ? slot(all_v.rows() - 1) + 1 : 0;
  const LagRange lags = reachable_lags(q_slots, k_slots, offset, direction);
  double largest = position.bias().max(lags);
  if (E > 0) largest = std::max<double>(largest, position.extra().maxCoeff());
  if (largest == -std::numeric_limits<double>::infinity()) return tolerance;

  Matrix<double> w = A.template cast<double>() * B.template cast<double>().transpose();  // (n_q,n_k)
  Matrix<double> size = A.cwiseAbs().template cast<double>() * B.cwiseAbs().template cast<double>().transpose();
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      const Index key = keys[static_cast<std::size_t>(j)];
      const bool masked = direction == Direction::causal && key > i + offset;
      const double c =
          masked ? 0 : static_cast<double>(static_cast<T>(std::exp(position.bias_between(i, key, offset) - largest)));
      w(i, j) *= c;
      size(i, j) *= c;
    }
  const double growth = direct_growth<T>(A.cols(), n_k);
  Vector<double> D = w.rowwise().sum(), dD = growth * size.rowwise().sum();
  Matrix<double> dN = growth * (size * v.cwiseAbs().template cast<double>());  // (n_q,d_v)
  if (is_fft(engine) && lags.size() > 0) {
    LagWeights<T> c{lags.first + offset, Vector<T>(lags.size())};
    for (Index k = 0; k < lags.size(); ++k)
      c.values[k] = static_cast<T>(std::exp(static_cast<double>(position.bias()[lags.first + k]) - largest));
    Matrix<T> As = Matrix<T>::Zero(q_slots, A.cols()), Bs = Matrix<T>::Zero(k_slots, B.cols());
    Matrix<T> U = Matrix<T>::Zero(k_slots, d_v + 1);
    for (Index i = E; i < n_q; ++i) As.row(slot(i)) = A.row(i);
    for (Index j = 0; j < n_k; ++j)
      if (const Index key = keys[static_cast<std::size_t>(j)]; key >= E) {
        Bs.row(slot(key)) = B.row(j);
        U.row(slot(key)) << v.row(j), T(1);
      }
    const Vector<double> bounds = 2 * fft_margin * fft_error_bound(c, As, Bs, U);  // 2: see product_tolerance()
    const Vector<double> v_max = U.leftCols(d_v).cwiseAbs().colwise().maxCoeff().transpose().template cast<double>();
    for (Index i = E; i < n_q; ++i) {
      dD[i] += bounds[slot(i)];
      dN.row(i) += bounds[slot(i)] * v_max.transpose();
    }
  }
  for (Index i = 0; i < n_q; ++i) {
    if (size.row(i).maxCoeff() == 0) continue;
    const bool bounded = dD[i] < std::abs(D[i]) / 2;
    for (Index p = 0; p < d_v; ++p)
      tolerance(i, p) = bounded ? (dN(i, p) + std::abs(static_cast<double>(y(i, p))) * dD[i]) / (std::abs(D[i]) - dD[i])
                                : std::numeric_limits<double>::infinity();
  }
  return tolerance;
}

}  // namespace nprf::test
