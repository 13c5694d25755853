// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/block_product.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The weights C of a tiled product, Y = ((A B^T) o C) U, of any form.
namespace nprf::toeplitz {

/// The pairs of a block of queries i..i+rows-1 and a run of keys j0..j0+count-1, padded to so many packs.
struct PairBlock {
  Index i, rows, j0, count, packs;
};

/// The weights of a block of pairs: for each query of a block, Block<T>::rows in all, those of the keys of a run.
template <Real T>
class WeightBlock {
 public:
  /// For runs of at most `most` keys, padded to whole packs.
  WeightBlock(Index most, Workspace& scratch) : m_most(most), m_values(scratch.take<T>(Block<T>::rows * most)) {}

  const T* row(Index k) const { return m_rows[k]; }

  /// Row k is in this memory, which it returns.
  T* own_row(Index k) {
    T* values = m_values + k * m_most;
    m_rows[k] = values;
    return values;
  }
  /// Row k is where it was computed before.
  void refer(Index k, const T* values) { m_rows[k] = values; }

 private:
  Index m_most;
  T* m_values;
  const T* m_rows[Block<T>::rows] = {};
};

/// The weights of pairs of queries and keys.
template <Real T>
class TileWeights {
 public:
  /// Sets the weights of a block: after its last query those of this query again, or zeros, and zeros after its last
  /// key.
  virtual void set(const PairBlock& of, WeightBlock<T>& c) const = 0;

  /// The keys of the tile of queries i0..i0+rows-1: all that have non-zero weights. The tile reads them in runs of
  /// `run` keys.
  virtual RowRange keys(Index i0, Index rows, Index run) const = 0;

  /// Where the chunks (long_sums.hpp) of a sum over keys begin, begin + 1, ... begin.
  virtual Index chunk_origin(Index begin) const { return begin; }

  /// For gradients, of weights that depend on the scores S (Block<T>::rows,stride) of a block: may change both.
  virtual void replace_scores(const PairBlock&, T* /*S*/, Index /*stride*/, WeightBlock<T>&) const {}

  /// May multiply the terms P o C (Block<T>::rows,stride) of the gradient of B, after those of the gradient of A.
  virtual void multiply_by_factors(const PairBlock&, T* /*P*/, Index /*stride*/) const {}

 protected:
  ~TileWeights() = default;
};

}  // namespace nprf::toeplitz
