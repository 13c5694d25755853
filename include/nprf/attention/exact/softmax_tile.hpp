// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/block_product.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// Sums of exact softmax. The weights of a row are relative to its largest exponent s_ij + b_ij. For a query that
/// attends to no key, `largest` is -infinity and the sums are 0; a query with a NaN among its exponents has NaN sums.
template <Real T>
struct SoftmaxSums {
  MatrixRef<T> N;  // (rows,d_v)  sum_j exp(s_ij + b_ij - largest_i) v_j
  T *D, *largest;  // (rows)      sum_j exp(s_ij + b_ij - largest_i); max_j (s_ij + b_ij)
};

/// Exact softmax of the scores s_ij = q_i.k_j of a tile of queries, with a running maximum (Milakov and Gimelshein
/// 2018). O(d + d_v) a pair of `biases.keys()`, in runs of keys whose scores stay in the first-level cache.
template <Real T>
class SoftmaxTile {
 public:
  /// rows: the largest number of queries in a tile, which share a copy of k^T. keys: the largest number of keys in a
  /// run.
  static constexpr Index rows = 16 * Block<T>::rows, keys = softmax_run_keys;

  /// For keys k (n_k,d) and values v (n_k,d_v).
  SoftmaxTile(const MatrixView<T>& k, const MatrixView<T>& v, const RowBiases<T>& biases, Workspace& scratch)
      : m_k(k),
        m_v(v),
        m_biases(biases),
        m_q_blocks(k.cols(), scratch),
        m_kt(k.cols(), keys, scratch),
        m_values(v.cols(), keys, scratch),
        m_S(scratch.take<T>(Block<T>::rows * keys)),
        m_b(scratch.take<T>(keys)) {}

  /// Sets `out` for the queries i0, i0 + 1, ..., whose rows are q (rows,d).
  void contract(Index i0, const MatrixView<T>& q, SoftmaxSums<T> out) {
    out.N.setZero();
    std::fill_n(out.D, q.rows(), T(0));
    std::fill_n(out.largest, q.rows(), -infinity);
    m_q_blocks.set(q);
    const toeplitz::RowRange all = m_biases.keys(i0, q.rows());
    for (Index j0 = all.begin; j0 < all.end; j0 += keys) {
      const toeplitz::RowRange run{j0, std::min(j0 + keys, all.end)};
      m_kt.set(m_k.middleRows(j0, run.size()));
      for (Index i = 0; i < q.rows(); i += Block<T>::rows)
        add_block(i0, i, std::min(Block<T>::rows, q.rows() - i), run, out);
    }
  }

 private:
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  static constexpr Index W = Pack<T>::size;

  // adds what a run of keys contributes to the sums of the rows i..i+count-1 of the tile
  void add_block(Index i0, Index i, Index count, toeplitz::RowRange run, SoftmaxSums<T>& out) {
    const auto [begin, end] = m_biases.keys(i0 + i, count);
    const Index first = (std::max(begin, run.begin) - run.begin) / W * W, last = std::min(end, run.end) - run.begin;
    if (first >= last) return;
    const Index packs = packs_for<T>(last - first), cols = std::min(packs * W, run.size() - first);
    multiply_block(m_k.cols(), packs, m_q_blocks.block(i), m_kt.from(first / W),
                   [this](Index k, Index j, const Pack<T>& s) { s.store(m_S + k * keys + j); });  // (count,cols)
    for (Index k = 0; k < count; ++k) {
      m_biases.set(i0 + i + k, run.begin + first, cols, m_b);
      std::fill(m_b + cols, m_b + packs * W, -infinity);
      exponentials(i + k, m_S + k * keys, packs, out);
    }
    m_values.set(m_v.middleRows(run.begin + first, cols));
    m_values.add_product(LeftFactor<T, Step<keys>, Step<1>>{m_S, {}, {}}, count, out.N.data() + i * out.N.outerStride(),
                         out.N.outerStride());  // (count,d_v)
  }

  // S = exp(S + b - largest) of row i. If its largest exponent rises, its sums so far are divided by exp(rise)
  void exponentials(Index i, T* S, Index packs, SoftmaxSums<T>& out) const {
    Pack<T> max = Pack<T>::all(-infinity);
    for (Index j = 0; j < packs * W; j += W) {
      const Pack<T> s = Pack<T>::load(S + j) + Pack<T>::load(m_b + j);
      s.store(S + j);
      max = larger_or_nan(max, s);
    }
    const T most = max.largest_or_nan(), before = out.largest[i], largest = most <= before ? before : most;
    if (largest == -infinity) {
      std::fill_n(S, packs * W, T(0));
      return;
    }
    if (largest != before) {
      const T factor = std::exp(before - largest);
      scale(writable_row(out.N, i), factor), out.D[i] *= factor;
      out.largest[i] = largest;
    }
    Pack<T> sum = Pack<T>::all(0);
    for (Index j = 0; j < packs * W; j += W) {
      const Pack<T> weight = exp(Pack<T>::load(S + j) - Pack<T>::all(largest));
      weight.store(S + j);
      sum = sum + weight;
    }
    out.D[i] += sum.sum();
  }

  const MatrixView<T>&m_k, &m_v;
  const RowBiases<T>& m_biases;
  RowBlocks<T> m_q_blocks;
  TransposedRows<T> m_kt;
  RightRows<T> m_values;
  T *m_S, *m_b;  // (block,keys) (keys)
};

/// Calls emit(i, N_i, D_i, largest_i) with the sums of exact softmax (SoftmaxSums) of each row of the biases, for the
/// rows' queries q (rows,d), keys k (n_k,d) and values v (n_k,d_v). emit may overwrite N_i. It may be called from
/// several threads. O(d + d_v) a pair.
template <Real T, class Emit>
void for_each_softmax_sum(const RowBiases<T>& biases, const MatrixView<T>& q, const MatrixView<T>& k,
                          const MatrixView<T>& v, const Team& team, Emit&& emit) {
  using Tile = SoftmaxTile<T>;
  team.run_tiles(q.rows(), Tile::rows, [&](Index i0, Index rows, Workspace& scratch) {
    auto N = scratch.matrix<T>(rows, v.cols());
    SoftmaxSums<T> sums{N, scratch.take<T>(rows), scratch.take<T>(rows)};
    Tile(k, v, biases, scratch).contract(i0, q.middleRows(i0, rows), sums);
    for (Index i = 0; i < rows; ++i) emit(i0 + i, writable_row(sums.N, i), sums.D[i], sums.largest[i]);
  });
}

}  // namespace nprf
