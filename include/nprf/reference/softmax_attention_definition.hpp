// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/position_view.hpp"
#include "nprf/reference/softmax_attention.hpp"

namespace nprf::reference {

/// The biases b(i, j) of exact attention; -infinity for keys that the causal direction masks.
///
///     auto tile = biases.tile(i0, rows, end);   // rows i0..i0+rows-1 and the keys before `end`
///     tile.row(i, j0, cols)                     // the biases of row i0 + i and the keys j0..j0+cols-1
///
/// Biases are relative to the largest one of their tile, or, for a position that assigns slots, of its tables, so that
/// a constant added to b costs no precision.
template <Real T>
class BiasRows {
 public:
  /// Query i has position i + offset. Throws InvalidArgument unless n_q and n_k are the number of tokens of a position
  /// that assigns slots to them, and the offset is 0.
  BiasRows(const PositionView<T>& position, Direction direction, Index n_q, Index n_k, Index offset = 0)
      : m_position(position), m_causal(direction == Direction::causal), m_n_q(n_q) {
    if (position.is_placed())
      place(n_k, offset);
    else
      set_lags(n_k, offset);
  }

  /// Whether any bias may be -infinity.
  bool any_masked() const { return m_any_masked; }

  class Tile {
   public:
    Tile(const BiasRows& all, Index i0, Index rows, Vector<T> window)
        : m_all(all), m_i0(i0), m_rows(rows), m_values(std::move(window)) {}

    Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>> row(Index i, Index j0, Index cols) {
      if (!m_all.m_position.is_placed()) return {m_values.data() + (m_rows - 1 + j0 - i), cols};
      resize(m_values, cols);
      m_all.fill(m_i0 + i, j0, m_values);
      return {m_values.data(), cols};
    }

   private:
    const BiasRows& m_all;
    Index m_i0, m_rows;
    Vector<T> m_values;  // of the lags of the tile; for a position that assigns slots, of the last row
  };

  Tile tile(Index i0, Index rows, Index end) const {
    if (m_position.is_placed()) return {*this, i0, rows, {}};
    Vector<T> window(rows + end - 1);
    const double* b = m_b.data() + (m_n_q - i0 - rows);
    double largest = end > 0 ? *std::max_element(b, b + window.size()) : minus_infinity<double>;
    if (largest == minus_infinity<double>) largest = 0;
    for (Index l = 0; l < window.size(); ++l) window[l] = static_cast<T>(b[l] - largest);
    return {*this, i0, rows, std::move(window)};
  }

 private:
  template <Real S>
  static constexpr S minus_infinity = -std::numeric_limits<S>::infinity();

  template <class X>
  static bool has_minus_infinity(const X& x) {
    return std::find(x.data(), x.data() + x.size(), minus_infinity<typename X::Scalar>) != x.data() + x.size();
  }

  void set_lags(Index n_k, Index offset) {
    m_b.resize(std::max<Index>(m_n_q + n_k - 1, 0));
    for (Index l = 0; l < m_b.size(); ++l) {
      const Index lag = l - (m_n_q - 1) - offset;
      m_b[l] = m_causal && lag > 0 ? minus_infinity<double> : m_position.bias()[lag];
    }
    m_any_masked = has_minus_infinity(m_b);
  }

  void place(Index n_k, Index offset) {
    require(offset == 0, "offset: expected 0 for a position that assigns slots, got ", offset);
    require(m_n_q == m_position.tokens() && n_k == m_n_q, "queries and keys: expected ", m_position.tokens(),
            " rows each (the position's tokens), got ", m_n_q, " and ", n_k);
    const auto& table = m_position.bias().table;
    const Matrix<T>& extra = m_position.extra();
    m_largest = std::max(table.maxCoeff(), extra.size() > 0 ? extra.maxCoeff() : minus_infinity<T>);
    if (m_largest == minus_infinity<T>) m_largest = 0;
    m_any_masked = m_causal || has_minus_infinity(table) || has_minus_infinity(extra);
    m_slot.resize(n_k - extra.rows());
    for (Index cell = 0; cell < m_slot.size(); ++cell) m_slot[cell] = m_position.slot(cell);
  }

  // sets row to the biases of a query and the keys j0, j0 + 1, ..., for a position that assigns slots
  void fill(Index query, Index j0, Vector<T>& row) const {
    const Matrix<T>& extra = m_position.extra();
    const Index E = extra.rows(), cols = row.size(), outside = std::clamp<Index>(E - j0, 0, cols);
    const LagBias<T>& b = m_position.bias();
    for (Index j = 0; j < outside; ++j) row[j] = static_cast<T>(m_position.bias_between(query, j0 + j, 0)) - m_largest;
    if (query < E) {
      std::fill(row.begin() + outside, row.end(), extra(query, 0) - m_largest);
    } else {
      const T* table = b.table.data() - b.first - m_slot[query - E];
      for (Index j = outside; j < cols; ++j) row[j] = table[m_slot[j0 + j - E]] - m_largest;
    }
    if (m_causal)
      for (Index j = std::max<Index>(query + 1 - j0, 0); j < cols; ++j) row[j] = minus_infinity<T>;
  }

  PositionView<T> m_position;
  bool m_causal, m_any_masked = false;
  Index m_n_q;
  Vector<double> m_b;    // the bias of lag l at l + n_q - 1 + offset
  T m_largest = 0;       // the largest bias of a position that assigns slots
  Vector<Index> m_slot;  // the slot of each cell of such a position
};

namespace detail {

/// The keys that are padding: those for which the mask is false. An empty mask has none.
class Padding {
 public:
  /// Throws InvalidArgument unless the mask is empty or has n_k values.
  Padding(std::span<const bool> key_mask, Index n_k) : m_mask(key_mask) {
    const Index size = static_cast<Index>(key_mask.size());
    require(size == 0 || size == n_k, "key_mask: expected ", n_k, " values (the number of keys), got ", size);
  }

  /// s has one entry for each of the keys j0, j0 + 1, ...: sets the entries of those that are padding to `value`.
  template <class Row>
  void fill(Row& s, Index j0, typename Row::Scalar value) const {
    for (Index j = 0; !m_mask.empty() && j < s.size(); ++j)
      if (!m_mask[static_cast<std::size_t>(j0 + j)]) s[j] = value;
  }

  /// v (n_k,d_v) with zeros in the rows of padding; empty without padding.
  template <Real T>
  Matrix<T> without(const MatrixView<T>& v) const {
    Matrix<T> kept;
    if (!m_mask.empty()) kept = v;
    for (Index j = 0; j < kept.rows(); ++j)
      if (!m_mask[static_cast<std::size_t>(j)]) std::ranges::fill(writable_row(kept, j), T(0));
    return kept;
  }

 private:
  std::span<const bool> m_mask;
};

/// Adds r.R[lag] (QueryBiased) to the scores s of a query and successive keys: the query is at key `at` of these.
template <class Row, class R, class Scores>
void add_query_biases(const Row& r, const R& lag_vectors, Direction direction, Index at, Scores&& s) {
  const Index lags = lag_vectors.cols(), near = direction == Direction::causal ? lags : (lags + 1) / 2;
  const Index first = std::max<Index>(at + 1 - near, 0), end = std::min<Index>(at + 1 - near + lags, s.size());
  if (first < end)
    s.segment(first, end - first) += (r * lag_vectors.middleCols(first - (at + 1 - near), end - first)).array();
}

template <Real T>
Matrix<T> softmax_attention(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                            const PositionView<T>& position, Direction direction, Normalization normalization,
                            void (*poll)(), std::span<const bool> key_mask, Index offset, CompiledFlags<T>) {
  constexpr Index tile_rows = 128, tile_cols = 256;
  constexpr T minus_infinity = -std::numeric_limits<T>::infinity();
  const Index rank = position.rank();
  require(q.cols() >= rank, "queries: expected at least ", rank, " columns (those of the position's lag_vectors), got ",
          q.cols());
  const MatrixView<T> r = q.rightCols(rank), of_scores = q.leftCols(q.cols() - rank);
  const AttentionShape shape = attention_shape<T>(of_scores, k, v);
  const Index n_q = shape.n_q, n_k = shape.n_k, d_v = shape.d_v;
  const Padding padding(key_mask, n_k);

  const Matrix<T> qs = rows_scaled_by<T>(entries_of(normalization.row_scale<T>(of_scores)), of_scores);  // (n_q,d)
  const Matrix<T> kt = rows_scaled_by<T>(entries_of(normalization.row_scale<T>(k)), k).transpose();      // (d,n_k)
  const BiasRows<T> b(position, direction, n_q, n_k, offset);
  const bool any_masked = b.any_masked(), may_be_nan = !has_finite_entries(qs) || !has_finite_entries(kt);
  const Matrix<T> kept = padding.template without<T>(v);
  const MatrixView<T> values = key_mask.empty() ? v : MatrixView<T>(kept);  // (n_k,d_v)

  Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
  Team(workspaces, poll).run_tiles(n_q, tile_rows, [&](Index i0, Index rows, Workspace&) {
    Matrix<T> S;
    const Index end = direction == Direction::causal ? std::clamp<Index>(i0 + rows + offset, 0, n_k) : n_k;
    auto biases = b.tile(i0, rows, end);
    auto out = y.middleRows(i0, rows);  // (rows,d_v)
    Vector<T> largest = Vector<T>::Constant(rows, minus_infinity), sum = Vector<T>::Zero(rows);
    for (Index j0 = 0; j0 < end; j0 += tile_cols) {
      const Index cols = std::min(tile_cols, end - j0);
      resize(S, rows, cols);
      set_product(S, qs.middleRows(i0, rows), kt.middleCols(j0, cols));  // (rows,cols)
      for (Index i = 0; i < rows; ++i) {
        auto s = S.row(i).array();
        const auto bias = biases.row(i, j0, cols);
        s += bias;
        if (rank > 0) add_query_biases(r.row(i0 + i), *position.lag_vectors(), direction, i0 + i + offset - j0, s);
        padding.fill(s, j0, minus_infinity);
        // the largest entry that is not NaN: the NaN of a key that the row attends to makes the sum NaN, the NaN of any
        // other key has no effect
        T new_max = may_be_nan ? s.template maxCoeff<Eigen::PropagateNumbers>() : s.maxCoeff();
        if (!(new_max >= largest[i])) new_max = largest[i];
        const auto is_attended_nan = [&](Index j) { return std::isnan(s[j]) && bias[j] != minus_infinity; };
        if (new_max == minus_infinity && std::ranges::none_of(std::views::iota(Index{0}, cols), is_attended_nan)) {
          std::ranges::fill(writable_row(S, i), T(0));  // no key so far
          continue;
        }
        if (new_max != largest[i]) {
          const T rescale = std::exp(largest[i] - new_max);
          scale(writable_row(out, i), rescale);
          sum[i] *= rescale;
          largest[i] = new_max;
        }
        s = (s - new_max).exp();
        // Eigen's exp(-infinity) may be positive
        if (any_masked)
          for (Index j = 0; j < cols; ++j)
            if (bias[j] == minus_infinity) s[j] = 0;
        sum[i] += s.sum();
      }
      add_product(out, S, values.middleRows(j0, cols));  // (rows,d_v)
    }
    for (Index i = 0; i < rows; ++i)
      if (largest[i] != minus_infinity) set_quotient(writable_row(out, i), row_of(out, i), sum[i]);
  });
  return y;
}

}  // namespace detail

}  // namespace nprf::reference
