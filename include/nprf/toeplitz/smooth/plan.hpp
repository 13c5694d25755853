// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

namespace nprf::toeplitz {

/// The tokens along one axis of C: queries or keys.
enum class Axis { queries, keys };

/// One block of C that is summed by moments: that of a chunk and of the chunk of the other axis that is `offset` chunks
/// further. K (terms,terms) gives the polynomial coefficients of the former from the moments of the latter.
template <Real T>
struct Coupling {
  Index offset;
  const T* K;
};

/// Chunks of one size: level 0 has chunks of smooth_chunk slots, level l + 1 has chunks of two chunks of level l.
template <Real T>
struct SmoothLevel {
  Index first = 0, count = 0;               // of the distances D = chunk of the queries - chunk of the keys
  const ChunkBlock<T>* blocks = nullptr;    // (count)
  const ChunkBlock<T>* tangents = nullptr;  // (count)  of LagWeightsView::tangents; null: none
  // the polynomials of level l + 1 by those of this level (Halves)
  const T *W[2] = {}, *Wt[2] = {};
  struct Side {
    Index chunks = 0;
    std::span<const Coupling<T>> coupled[2];  // of even and of odd chunks
  } sides[2];                                 // queries, keys

  const Side& side(Axis axis) const { return sides[axis == Axis::queries ? 0 : 1]; }
  BlockKind kind(Index D) const { return D >= first && D < first + count ? blocks[D - first].kind : BlockKind::rough; }
};

/// How C is divided into blocks: those that are smooth (chunk_blocks.hpp), at the highest level where they are; and
/// tiles of one chunk, which are all others. A block that the slots do not fill is a tile.
///
/// P: the packs that it computes with. Time and memory O(n terms^2).
template <Real T, class P = Pack<T>>
class SmoothPlan {
 public:
  static constexpr Index most_levels = 40;  // more than there can be slots for

  /// For the weights c of queries in slots 0..n_q-1 and keys in slots 0..n_k-1. A weight changes by at most
  /// c.max_deviation, relative to it, and a tangent by at most tangent_factor times as much, relative to its weight. c
  /// must have all lags between the slots. The tables are in `storage`, of which take<U>(count) returns memory for
  /// `count` objects: a Workspace, or a GPU's HostMemory.
  template <class Storage>
  SmoothPlan(LagWeightsView<T> c, Index n_q, Index n_k, Index terms, Storage& storage);

  Index terms() const { return m_terms; }
  Index levels() const { return m_levels; }
  /// The highest level with blocks that are summed there; -1 if there is none.
  Index top() const { return m_top; }
  const SmoothLevel<T>& level(Index l) const { return m_level[l]; }
  /// The distances of the tiles, from the largest to the smallest one.
  std::span<const Index> tiles() const { return m_tiles; }
  /// The largest change of a weight, relative to it.
  double error() const { return m_error; }
  /// The largest sum of the magnitudes that a weight is added from, relative to it.
  double condition() const { return m_condition; }
  /// A bound of how much the weights that are used differ from c, relative to c, with the rounding errors of the sums
  /// that they are added from.
  double deviation() const {
    // the sums of a chunk, of its polynomials up and down the levels, and of the blocks
    const double roundings = smooth_chunk + 4.0 * static_cast<double>(m_terms * m_levels);
    return m_error + m_condition * static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 *
                         (m_top < 0 ? 0 : std::sqrt(roundings));
  }
  /// Whether no block that is summed has later keys than its queries.
  bool is_one_sided() const { return m_is_one_sided; }

 private:
  // sets the numbers of chunks and distances
  void set_shape(Index l) {
    SmoothLevel<T>& level = m_level[l] = {};
    const Index points = smooth_chunk << l;
    level.sides[0].chunks = (m_n_q + points - 1) / points, level.sides[1].chunks = (m_n_k + points - 1) / points;
    level.first = 1 - level.sides[1].chunks, level.count = level.sides[0].chunks + level.sides[1].chunks - 1;
  }
  template <class Storage>
  static const T* rounded(const double* M, Storage& storage) {
    T* out = storage.template take<T>(term_pairs);
    for (Index k = 0; k < term_pairs; ++k) out[k] = static_cast<T>(M[k]);
    return out;
  }
  template <class Storage>
  void set_lowest_level(LagWeightsView<T> c, Storage& storage);
  template <class Storage>
  bool add_level(double tolerance, Storage& storage);
  template <class Storage>
  void couple(Index l, Storage& storage);

  Index m_n_q, m_n_k, m_terms, m_levels = 1, m_top = -1;
  SmoothLevel<T>* m_level;  // (most_levels)
  std::span<const Index> m_tiles;
  double m_error = 0, m_condition = 1;
  bool m_is_one_sided = true;
};

template <Real T, class P>
template <class Storage>
SmoothPlan<T, P>::SmoothPlan(LagWeightsView<T> c, Index n_q, Index n_k, Index terms, Storage& storage)
    : m_n_q(n_q), m_n_k(n_k), m_terms(terms), m_level(storage.template take<SmoothLevel<T>>(most_levels)) {
  set_lowest_level(c, storage);
  while (m_levels < most_levels && add_level(c.max_deviation, storage)) ++m_levels;
  for (Index l = 0; l < m_levels; ++l) couple(l, storage);
  const SmoothLevel<T>& lowest = m_level[0];
  Index* tiles = storage.template take<Index>(lowest.count);
  std::size_t count = 0;
  for (Index D = lowest.first + lowest.count - 1; D >= lowest.first; --D)
    if (lowest.kind(D) == BlockKind::rough) tiles[count++] = D;
  m_tiles = {tiles, count};
}

template <Real T, class P>
template <class Storage>
void SmoothPlan<T, P>::set_lowest_level(LagWeightsView<T> c, Storage& storage) {
  set_shape(0);
  SmoothLevel<T>& level = m_level[0];
  auto* blocks = storage.template take<ChunkBlock<T>>(level.count);
  auto* tangents = c.tangents ? storage.template take<ChunkBlock<T>>(level.count) : nullptr;
  for (Index k = 0; k < level.count; ++k) {
    const BlockWeights<T, P> weights(c, level.first + k);
    blocks[k] = weights.block(m_terms);
    if (tangents) tangents[k] = weights.tangents(m_terms);
    const bool fails = !weights.is_whole() || (tangents && tangents[k].kind != BlockKind::smooth);
    if (fails && blocks[k].kind == BlockKind::smooth) blocks[k].kind = BlockKind::rough;
  }
  level.blocks = blocks, level.tangents = tangents;
}

// adds the level above the highest one; returns false if it has no smooth block
template <Real T, class P>
template <class Storage>
bool SmoothPlan<T, P>::add_level(double tolerance, Storage& storage) {
  const Index l = m_levels;
  SmoothLevel<T>& inner = m_level[l - 1];
  if (std::max(inner.sides[0].chunks, inner.sides[1].chunks) <= 2) return false;
  set_shape(l);
  SmoothLevel<T>& level = m_level[l];
  auto* blocks = storage.template take<ChunkBlock<T>>(level.count);
  auto* tangents = inner.tangents ? storage.template take<ChunkBlock<T>>(level.count) : nullptr;
  const Halves halves(smooth_chunk << (l - 1), m_terms);
  for (Index half : {0, 1}) {
    inner.W[half] = rounded(halves.W[half], storage);
    inner.Wt[half] = rounded(halves.Wt[half], storage);
  }
  bool any = false;
  for (Index k = 0; k < level.count; ++k) {
    const auto joined = [&](const ChunkBlock<T>* of, double most) {
      const auto at = [&](Index a, Index b) {
        const Index x = 2 * (level.first + k) + a - b - inner.first;
        return x >= 0 && x < inner.count ? of + x : nullptr;
      };
      return ChunkBlock<T>::of_halves(at, halves, most);
    };
    blocks[k] = joined(inner.blocks, tolerance);
    if (tangents && blocks[k].kind == BlockKind::smooth) {
      tangents[k] = joined(inner.tangents, tangent_factor * tolerance);
      if (tangents[k].kind != BlockKind::smooth) blocks[k].kind = BlockKind::rough;
    }
    any |= blocks[k].kind == BlockKind::smooth;
  }
  level.blocks = blocks, level.tangents = tangents;
  return any;
}

// lists the blocks of level l that are smooth and not in a smooth block of level l + 1
template <Real T, class P>
template <class Storage>
void SmoothPlan<T, P>::couple(Index l, Storage& storage) {
  SmoothLevel<T>& level = m_level[l];
  T* matrices[2] = {storage.template take<T>(level.count * term_pairs),
                    storage.template take<T>(level.count * term_pairs)};  // K, K^T
  for (Index side : {0, 1})
    for (Index parity : {0, 1}) {
      auto* list = storage.template take<Coupling<T>>(level.count);
      std::size_t count = 0;
      for (Index k = 0; k < level.count; ++k) {
        const ChunkBlock<T>& block = level.blocks[k];
        if (block.kind != BlockKind::smooth) continue;
        const Index D = level.first + k, offset = side == 0 ? -D : D;
        // the chunks are 2 i + parity and 2 i + parity + offset
        const Index outer = (parity + offset) >> 1;
        if (l + 1 < m_levels && m_level[l + 1].kind(side == 0 ? -outer : outer) == BlockKind::smooth) continue;
        T *K = matrices[0] + k * term_pairs, *Kt = matrices[1] + k * term_pairs;
        list[count++] = {offset, side == 0 ? K : Kt};
        if (side == 1) continue;
        for (Index p = 0; p < most_terms; ++p)
          for (Index q = 0; q < most_terms; ++q)
            K[p * most_terms + q] = Kt[q * most_terms + p] = static_cast<T>(block.K[p * most_terms + q]);
        m_error = std::max(m_error, block.error);
        m_condition = std::max(m_condition, block.condition);
        m_is_one_sided &= D > 0;
      }
      level.sides[side].coupled[parity] = {list, count};
      if (count > 0) m_top = l;
    }
}

}  // namespace nprf::toeplitz
