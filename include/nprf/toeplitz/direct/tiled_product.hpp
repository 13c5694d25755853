// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "nprf/core/block_product.hpp"
#include "nprf/core/function_ref.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The pairs of a block of queries i..i+rows-1 with a run of keys j0..j0+count-1, which is padded to `packs` packs.
struct PairBlock {
  Index i, rows, j0, count, packs;
};

/// The weights of a block of pairs: Block<T>::rows rows, one for each query, with a weight for each key of a run.
template <Real T>
class WeightBlock {
 public:
  /// `most` is the largest number of keys in a run, with its padding to whole packs.
  WeightBlock(Index most, Workspace& scratch) : m_most(most), m_values(scratch.take<T>(Block<T>::rows * most)) {}

  const T* row(Index k) const { return m_rows[k]; }

  /// Makes row k refer to memory of this object. Returns it, so that the caller can write the row.
  T* own_row(Index k) {
    T* values = m_values + k * m_most;
    m_rows[k] = values;
    return values;
  }
  /// Makes row k refer to weights that are stored elsewhere already.
  void refer(Index k, const T* values) { m_rows[k] = values; }

 private:
  Index m_most;
  T* m_values;
  const T* m_rows[Block<T>::rows] = {};
};

/// The interface through which tiles get the weights of pairs of queries and keys.
template <Real T>
class TileWeights {
 public:
  /// Sets the weights `c` of a block of pairs. Rows after its last query get the weights of the last query again, or
  /// zeros. After its last key all rows get zeros.
  virtual void set(const PairBlock& of, WeightBlock<T>& c) const = 0;

  /// Returns the keys of the tile of queries i0..i0+rows-1, a range that contains all keys with non-zero weights. The
  /// tile reads them in runs of `run` keys.
  virtual RowRange keys(Index i0, Index rows, Index run) const = 0;

  /// Returns the key from which the chunks (long_sums.hpp) of a sum over the keys begin, begin + 1, ... are counted.
  virtual Index chunk_origin(Index begin) const { return begin; }

  /// Called for gradients, after set(). May change the scores S (Block<T>::rows,stride) of a block and its weights, if
  /// the weights depend on the scores.
  virtual void replace_scores(const PairBlock&, T* /*S*/, Index /*stride*/, WeightBlock<T>&) const {}

  /// Called for gradients, after P o C (Block<T>::rows,stride) has been used for the gradient of A. May multiply P o C
  /// by factors before it is used for the gradient of B.
  virtual void multiply_by_factors(const PairBlock&, T* /*P*/, Index /*stride*/) const {}

 protected:
  ~TileWeights() = default;
};

/// Weights that are computed one by one: weight(i, j) of query i and key j. keys(i0, rows) returns the range of keys to
/// which queries i0..i0+rows-1 may give non-zero weights.
template <class Weight, class Keys, class T = std::invoke_result_t<const Weight&, Index, Index>>
class EachWeight final : public TileWeights<T> {
 public:
  EachWeight(const Weight& weight, const Keys& keys) : m_weight(weight), m_keys(keys) {}

  void set(const PairBlock& of, WeightBlock<T>& c) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* weights = c.own_row(k);
      const Index i = of.i + std::min(k, of.rows - 1);
      for (Index j = 0; j < of.count; ++j) weights[j] = m_weight(i, of.j0 + j);
      std::fill(weights + of.count, weights + of.packs * Pack<T>::size, T(0));
    }
  }
  RowRange keys(Index i0, Index rows, Index) const override { return m_keys(i0, rows); }

 private:
  Weight m_weight;
  Keys m_keys;
};

/// Y = ((A B^T) o C) U for the queries of one tile. The scores of a block of queries and a run of keys stay in the
/// first-level cache.
template <Real T>
class ForwardTile {
 public:
  /// The largest number of queries of a tile, which share a copy of B^T; and the largest number of keys in a run.
  static constexpr Index rows = 22 * Block<T>::rows, keys = run_keys;
  static_assert(keys % Pack<T>::size == 0);

  /// For a tile of at most `rows` queries.
  ForwardTile(const Factors<T>& x, const TileWeights<T>& weights, RowRange queries, Workspace& scratch)
      : m_x(x),
        m_weights(weights),
        m_queries(queries),
        m_A(x.A.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_U(x.U.cols(), keys, scratch),
        m_c(keys, scratch),
        m_S(scratch.take<T>(Block<T>::rows * keys)) {
    m_A.set(x.A.middleRows(queries.begin, queries.size()));
  }

  /// Adds the terms of the keys `of` to Y (queries,p). If sums (queries) is not null, adds to it the same terms with
  /// values of 1.
  void add(RowRange of, MatrixRef<T> Y, T* sums) {
    for (Index j0 = of.begin; j0 < of.end; j0 += keys) add_run(j0, std::min(keys, of.end - j0), Y, sums);
  }

 private:
  void add_run(Index j0, Index cols, MatrixRef<T>& Y, T* sums);

  // whether all weights of the block are 0, so that it can be skipped; as above the diagonal of causal attention
  bool all_zero(Index packs) const {
    for (Index k = 0; k < Block<T>::rows; ++k)
      if (std::any_of(m_c.row(k), m_c.row(k) + packs * Pack<T>::size, [](T c) { return c != T(0); })) return false;
    return true;
  }

  static T row_sum(const T* row, Index packs) {
    Pack<T> sum = Pack<T>::all(0);
    for (Index k = 0; k < packs; ++k) sum = sum + Pack<T>::load(row + k * Pack<T>::size);
    return sum.sum();
  }

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
  RowRange m_queries;
  RowBlocks<T> m_A;
  Transposed<T> m_Bt;
  RightRows<T> m_U;
  WeightBlock<T> m_c;
  T* m_S;  // (block,keys)
};

// not inline, so that it can be compiled once (implementation.hpp)
template <Real T>
void ForwardTile<T>::add_run(Index j0, Index cols, MatrixRef<T>& Y, T* sums) {
  const Index packs = packs_for<T>(cols), r = m_x.A.cols();
  m_Bt.set(m_x.B.middleRows(j0, cols), packs);
  m_U.set(m_x.U.middleRows(j0, cols));
  for (Index i = 0; i < m_queries.size(); i += Block<T>::rows) {
    const Index block = std::min(Block<T>::rows, m_queries.size() - i);
    m_weights.set({m_queries.begin + i, block, j0, cols, packs}, m_c);
    if (all_zero(packs)) continue;
    multiply_block(r, packs, m_A.block(i), m_Bt.factor(), [&](Index k, Index j, const Pack<T>& s) {
      weighted(s, Pack<T>::load(m_c.row(k) + j)).store(m_S + k * keys + j);  // S = (A B^T) o C  (block,cols)
    });
    m_U.add_product(LeftFactor<T, Step<keys>, Step<1>>{m_S, {}, {}}, block, Y.data() + i * Y.outerStride(),
                    Y.outerStride());  // (block,p)
    for (Index k = 0; sums && k < block; ++k) sums[i + k] += row_sum(m_S + k * keys, packs);
  }
}

/// A query i and the keys j0..j0+count-1 of a run: the scores S = A B^T, P = G U^T and the weights C of their pairs,
/// (count) each.
template <Real T>
struct PairRow {
  Index i, j0, count;
  const T *S, *P, *C;

  /// C o dC = S o P o C of key j0 + j: the gradient of the logarithm of its weight; 0 if the weight is 0.
  T log_weight_gradient(Index j) const { return C[j] == T(0) ? T(0) : S[j] * P[j] * C[j]; }
};

// forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G, dC = S o P
/// The gradients of Y = ((A B^T) o C) U for the queries of one tile.
template <Real T>
class BackwardTile {
 public:
  /// The largest number of queries of a tile, and of keys in a run. Their scores stay in the second-level cache.
  static constexpr Index rows = 96, keys = 96;
  static_assert(rows % Block<T>::rows == 0 && keys % Block<T>::rows == 0 && keys % Pack<T>::size == 0);

  /// A function that is called for each query and run of keys, and adds to the gradient of the weights.
  using AddDc = FunctionRef<void(const PairRow<T>&)>;

  /// For G (n_q,p) = dL/dY.
  BackwardTile(const Factors<T>& x, const MatrixView<T>& G, const TileWeights<T>& weights, Workspace& scratch)
      : m_x(x),
        m_weights(weights),
        m_G(G),
        m_A_blocks(x.A.cols(), scratch),
        m_G_blocks(G.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_Ut(G.cols(), keys, scratch),
        m_B(x.B.cols(), keys, scratch),
        m_c(keys, scratch),
        m_S(scratch.take<T>(rows * keys)),
        m_P(scratch.take<T>(rows * keys)),
        m_sums(scratch.take<T>(keys)) {}

  /// Sets the queries for the next calls of add().
  void set_queries(RowRange queries) {
    m_queries = queries;
    m_A_blocks.set(m_x.A.middleRows(queries.begin, queries.size()));
    m_G_blocks.set(m_G.middleRows(queries.begin, queries.size()));
  }

  /// Adds the terms of these queries and the keys `of` to out.dA (n_q,r), out.dB (n_k,r) and out.dU (n_k,p), and calls
  /// add_dc(PairRow) for each query and run of keys.
  void add(RowRange of, GradientRefs<T>& out, AddDc add_dc) {
    for (Index j0 = of.begin; j0 < of.end; j0 += keys) add_run(j0, std::min(keys, of.end - j0), out, add_dc);
  }

 private:
  void add_run(Index j0, Index cols, GradientRefs<T>& out, AddDc add_dc);

  // out (cols,q) += S^T x, for x (queries,q)
  void add_transposed_product(const T* S, const MatrixView<T>& x, MatrixRef<T> out);

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
  const MatrixView<T>& m_G;
  RowBlocks<T> m_A_blocks, m_G_blocks;
  Transposed<T> m_Bt, m_Ut;
  RightRows<T> m_B;
  WeightBlock<T> m_c;
  T *m_S, *m_P;  // (rows,keys)
  T* m_sums;     // (keys)
  RowRange m_queries{};
};

// not inline, so that these two functions can be compiled once (implementation.hpp)
template <Real T>
void BackwardTile<T>::add_run(Index j0, Index cols, GradientRefs<T>& out, AddDc add_dc) {
  // enough packs for whole blocks of keys, which add_transposed_product() reads
  const Index packs = packs_for<T>((cols + Block<T>::rows - 1) / Block<T>::rows * Block<T>::rows);
  m_Bt.set(m_x.B.middleRows(j0, cols), packs);
  m_Ut.set(m_x.U.middleRows(j0, cols), packs);
  m_B.set(m_x.B.middleRows(j0, cols));
  for (Index i = 0; i < m_queries.size(); i += Block<T>::rows) {
    const Index block = std::min(Block<T>::rows, m_queries.size() - i), i0 = m_queries.begin + i;
    T *S = m_S + i * keys, *P = m_P + i * keys;
    multiply_block(m_x.A.cols(), packs, m_A_blocks.block(i), m_Bt.factor(),
                   [=](Index k, Index j, const Pack<T>& s) { s.store(S + k * keys + j); });  // (block,cols)
    multiply_block(m_G.cols(), packs, m_G_blocks.block(i), m_Ut.factor(),
                   [=](Index k, Index j, const Pack<T>& p) { p.store(P + k * keys + j); });  // (block,cols)
    const PairBlock pairs{i0, block, j0, cols, packs};
    m_weights.set(pairs, m_c);
    m_weights.replace_scores(pairs, S, keys, m_c);
    for (Index k = 0; k < block; ++k) add_dc(PairRow<T>{i0 + k, j0, cols, S + k * keys, P + k * keys, m_c.row(k)});
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const T* c = m_c.row(k);
      for (T* x : {S + k * keys, P + k * keys})
        for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size)
          weighted(Pack<T>::load(x + j), Pack<T>::load(c + j)).store(x + j);
    }
    m_B.add_product(LeftFactor<T, Step<keys>, Step<1>>{P, {}, {}}, block, out.dA.data() + i0 * out.dA.outerStride(),
                    out.dA.outerStride());  // (block,r)
    m_weights.multiply_by_factors(pairs, P, keys);
  }
  add_transposed_product(m_P, m_x.A.middleRows(m_queries.begin, m_queries.size()),
                         out.dB.middleRows(j0, cols));  // (cols,r)
  add_transposed_product(m_S, m_G.middleRows(m_queries.begin, m_queries.size()),
                         out.dU.middleRows(j0, cols));  // (cols,p)
}

template <Real T>
void BackwardTile<T>::add_transposed_product(const T* S, const MatrixView<T>& x, MatrixRef<T> out) {
  const Index packs = x.cols() / Pack<T>::size, cols = out.rows(), stride = out.outerStride();
  for (Index j = 0; j < cols; j += Block<T>::rows) {
    T* to = out.data() + j * stride;
    multiply_block(x.rows(), packs, LeftFactor<T, Step<1>, Step<keys>>{S + j, {}, {}},
                   RightFactor<T>::in_place(x.data(), x.outerStride()), [=](Index k, Index q, const Pack<T>& y) {
                     T* at = to + k * stride + q;
                     if (k < cols - j) (Pack<T>::load(at) + y).store(at);
                   });
  }
  for (Index q = packs * Pack<T>::size; q < x.cols(); ++q) {  // the columns after the whole packs
    T* sums = m_sums;
    std::fill_n(sums, cols, T(0));
    for (Index i = 0; i < x.rows(); ++i) {
      const T each = x(i, q);
      for (Index j = 0; j < cols; ++j) sums[j] += each * S[i * keys + j];
    }
    for (Index j = 0; j < cols; ++j) out(j, q) += sums[j];
  }
}

/// Y = ((A B^T) o C) U and its gradients, by tiles of the n_q x n_k matrix, for any weights C. Every row is rounded
/// relative to its own terms. Time O(n_q n_k (r + p)), or less if TileWeights::keys() returns fewer than n_k keys;
/// scratch memory of one tile for each thread.
template <Real T>
class TiledProduct {
 public:
  TiledProduct(const Factors<T>& x, const TileWeights<T>& weights) : m_x(x), m_weights(weights) {}

  /// Writes Y (n_q,p). If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1. Threads share out the tiles of
  /// queries.
  void contract(MatrixRef<T> Y, const Team& team, T* sums) const {
    team.run_tiles(m_x.A.rows(), Forward::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      T* tile_sums = sums ? sums + i0 : nullptr;
      y.setZero();
      if (sums) std::fill_n(tile_sums, rows, T(0));
      add(i0, y, tile_sums, scratch);
    });
  }

  /// For one tile, adds rows i0..i0+rows-1 of ((A B^T) o C) U to y (rows,p). If sums (rows) is not null, adds the same
  /// rows of ((A B^T) o C) 1 to it.
  void add(Index i0, MatrixRef<T> y, T* sums, Workspace& scratch) const {
    const RowRange keys = m_weights.keys(i0, y.rows(), Forward::keys);
    if (keys.begin >= keys.end) return;
    const Workspace::Scope scope(scratch);
    Forward tile(m_x, m_weights, {i0, i0 + y.rows()}, scratch);
    add_in_chunks<T>(m_weights.chunk_origin(keys.begin), keys.begin, keys.end, y, sums, scratch,
                     [&](Index begin, Index end, MatrixRef<T> more, T* ones) {
                       tile.add({begin, end}, more, ones);
                     });
  }

  /// Adds the gradients for G (n_q,p) = dL/dY to `out`, except dc. add_dc(pairs, share) must add to `share` (size) what
  /// a row of pairs (PairRow) contributes to the gradient of the weights. Each block of queries has its own share,
  /// which is zero at first. Returns all shares (blocks,size). Threads share out pairs of blocks of queries and keys.
  MatrixMap<T> add_gradients(const MatrixView<T>& G, GradientRefs<T>& out, Index size, const Team& team,
                             FunctionRef<void(const PairRow<T>&, T*)> add_dc) const {
    static_assert(Backward::rows == Backward::keys);
    const Index n_q = m_x.A.rows(), n_k = m_x.B.rows();
    const Index tiles = (std::max(n_q, n_k) + Backward::rows - 1) / Backward::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Backward::rows; };
    auto shares = team.workspace().template matrix<T>(blocks, size);
    shares.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Backward tile(m_x, G, m_weights, scratch);
      const auto add_share = [&, share = shares.data() + block * size](const PairRow<T>& pairs) {
        add_dc(pairs, share);
      };
      const Index i_end = std::min(edge(block + 1), n_q), j_begin = edge(key_block),
                  j_end = std::min(edge(key_block + 1), n_k);
      for (Index i0 = edge(block); i0 < i_end; i0 += Backward::rows) {
        const Index rows = std::min(Backward::rows, i_end - i0);
        const auto [begin, end] = m_weights.keys(i0, rows, Backward::keys);
        tile.set_queries({i0, i0 + rows});
        tile.add({std::max(begin, j_begin), std::min(end, j_end)}, out, add_share);
      }
    });
    return shares;
  }

 private:
  using Forward = ForwardTile<T>;
  using Backward = BackwardTile<T>;
  static constexpr Index most_blocks = 8;

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
};

}  // namespace nprf::toeplitz
