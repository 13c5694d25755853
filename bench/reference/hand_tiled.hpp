// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/support/problem.hpp"

namespace nprf::bench {

/// Exact softmax attention written for this one case by hand: two GEMMs a tile, and two passes over the tile between
/// them.
///
/// Of the forms that were tried (all keys at a time, row-major scores, 64 to 512 rows, 128 to 1024 keys, an upper bound
/// in place of the maximum) this one was fastest: scores with a query's keys contiguous in a column-major tile.
inline Matrix<float> hand_tiled_softmax(const Problem& problem) {
  using Lanes = Eigen::Array<float, 16, 1>;
  constexpr Index tile = 256;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  const Index n = problem.q.rows();
  require(n % Lanes::SizeAtCompileTime == 0, "n: expected a multiple of ", Lanes::SizeAtCompileTime, ", got ", n);
  const Matrix<float> q = problem.q.rowwise().normalized(), k = problem.k.rowwise().normalized();  // (n,d)
  const Vector<float>& b = problem.position.bias().table;                                          // (2n-1)

  Matrix<float> y = Matrix<float>::Zero(n, problem.v.cols());
  Eigen::MatrixXf scores(tile, tile);
  Vector<float> largest(tile), sum(tile);
  for (Index i0 = 0; i0 < n; i0 += tile) {
    const Index rows = std::min(tile, n - i0);
    auto out = y.middleRows(i0, rows);
    largest.setConstant(lowest);
    sum.setZero();
    for (Index j0 = 0; j0 < n; j0 += tile) {
      const Index cols = std::min(tile, n - j0);
      auto S = scores.topLeftCorner(cols, rows);
      S.noalias() = k.middleRows(j0, cols) * q.middleRows(i0, rows).transpose();  // (cols,rows)
      for (Index i = 0; i < rows; ++i) {
        float* s = &scores(0, i);
        const float* bias = &b[n - 1 + j0 - (i0 + i)];
        Lanes top = Lanes::Constant(lowest), total = Lanes::Zero();
        for (Index j = 0; j < cols; j += top.size()) {
          Eigen::Map<Lanes> lanes(s + j);
          lanes += Eigen::Map<const Lanes>(bias + j);
          top = top.max(lanes);
        }
        if (const float higher = top.maxCoeff(); higher > largest[i]) {
          const float rescale = std::exp(largest[i] - higher);
          out.row(i) *= rescale;
          sum[i] *= rescale;
          largest[i] = higher;
        }
        for (Index j = 0; j < cols; j += total.size()) {
          Eigen::Map<Lanes> lanes(s + j);
          lanes = (lanes - largest[i]).exp();
          total += lanes;
        }
        sum[i] += total.sum();
      }
      out.noalias() += S.transpose() * problem.v.middleRows(j0, cols);  // (rows,d_v)
    }
    out.array().colwise() /= sum.head(rows).array();
  }
  return y;
}

}  // namespace nprf::bench
