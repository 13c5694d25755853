// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/position/position.hpp"

namespace nprf::reference {

/// The biases b(i, j) of exact attention; -infinity for keys that the causal direction masks.
///
///     auto tile = biases.tile(i0, rows, end);   // rows i0..i0+rows-1 and the keys before `end`
///     tile.row(i, j0, cols)                     // the biases of row i0 + i and the keys j0..j0+cols-1
///
/// The biases of a tile are relative to the largest of them, or to a larger bias, so that a constant added to b costs
/// no precision.
template <Real T, Position P>
class BiasRows {
 public:
  BiasRows(const P& position, Direction direction, Index n_q, Index n_k)
      : m_n_q(n_q), m_b(std::max<Index>(n_q + n_k - 1, 0)) {
    for (Index l = 0; l < m_b.size(); ++l) {
      const Index lag = l - (n_q - 1);
      m_b[l] = direction == Direction::causal && lag > 0 ? minus_infinity : position.bias()[lag];
    }
  }

  /// Whether a bias is -infinity.
  bool any_masked() const { return (m_b.array() == minus_infinity).any(); }

  struct Tile {
    auto row(Index i, Index j0, Index cols) { return window.segment(rows - 1 + j0 - i, cols).transpose().array(); }

    Index rows;
    Vector<T> window;
  };

  Tile tile(Index i0, Index rows, Index end) const {
    const auto window = m_b.segment(m_n_q - i0 - rows, rows + end - 1).array();
    const double largest = end > 0 ? window.maxCoeff() : minus_infinity;
    return {rows, (window - (largest > minus_infinity ? largest : 0)).template cast<T>()};
  }

 private:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  Index m_n_q;
  Vector<double> m_b;  // the bias of lag l at l + n_q - 1
};

/// The biases of a position that assigns slots to tokens.
template <Real T, PlacedPosition P>
class BiasRows<T, P> {
 public:
  /// Throws InvalidArgument unless n_q and n_k are the position's number of tokens.
  BiasRows(const P& position, Direction direction, Index n_q, Index n_k)
      : m_position(position), m_causal(direction == Direction::causal) {
    require(n_q == position.tokens() && n_k == n_q, "queries and keys: expected ", position.tokens(),
            " rows each (the position's tokens), got ", n_q, " and ", n_k);
    const auto& table = position.bias().table;
    const auto& extra = position.extra();
    m_largest = std::max(table.maxCoeff(), extra.size() > 0 ? extra.maxCoeff() : minus_infinity);
    if (m_largest == minus_infinity) m_largest = 0;
    m_any_masked = m_causal || (table.array() == minus_infinity).any() || (extra.array() == minus_infinity).any();
    m_slot.resize(n_k - extra.rows());
    for (Index cell = 0; cell < m_slot.size(); ++cell) m_slot[cell] = position.slot(cell);
  }

  bool any_masked() const { return m_any_masked; }

  struct Tile {
    auto row(Index i, Index j0, Index cols) {
      resize(buffer, cols);
      all.fill(i0 + i, j0, buffer);
      return buffer.transpose().array();
    }

    const BiasRows& all;
    Index i0;
    Vector<T> buffer;
  };

  Tile tile(Index i0, Index, Index) const { return {*this, i0, {}}; }

 private:
  static constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

  // sets row to the biases of a query and the keys j0, j0 + 1, ...
  void fill(Index query, Index j0, Vector<T>& row) const {
    const Index E = m_position.extra().rows(), cols = row.size(), outside = std::clamp<Index>(E - j0, 0, cols);
    const LagBias<T>& b = m_position.bias();
    for (Index j = 0; j < outside; ++j) row[j] = m_position.bias(query, j0 + j) - m_largest;
    if (query < E) {
      row.tail(cols - outside).setConstant(m_position.extra()(query, 0) - m_largest);
    } else {
      const T* table = b.table.data() - b.first - m_slot[query - E];
      for (Index j = outside; j < cols; ++j) row[j] = table[m_slot[j0 + j - E]] - m_largest;
    }
    if (m_causal)
      for (Index j = std::max<Index>(query + 1 - j0, 0); j < cols; ++j) row[j] = minus_infinity;
  }

  const P& m_position;
  bool m_causal, m_any_masked = false;
  T m_largest = 0;
  Vector<Index> m_slot;  // the slot of each cell
};

}  // namespace nprf::reference
