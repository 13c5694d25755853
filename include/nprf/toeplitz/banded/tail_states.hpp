// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"

namespace nprf::toeplitz {

/// Windows of consecutive tiles, whose running sums fit into a cache together.
struct Windows {
  Index tiles, size;

  /// For running sums of `scalars` numbers a tile.
  static Windows of(Index tiles, Index scalars) {
    constexpr Index in_cache = Index{1} << 17;
    return {tiles, std::clamp<Index>(in_cache / std::max<Index>(scalars, 1), 16, 256)};
  }

  Index count() const { return (tiles + size - 1) / size; }
  Index begin(Index window) const { return window * size; }
  Index end(Index window) const { return std::min(tiles, (window + 1) * size); }
};

/// The running sums of matrices X_I (rows,cols), one for each tile,
///
///     S_I = exp(slope d_I) S_{I-1} + X_I      from the first tile on,   or
///     S_I = exp(slope d_I) S_{I+1} + X_I      from the last one on,
///
/// with distances d_I >= 0, one window of tiles at a time, from the first window on. For sums from the last tile on,
/// prepare() passes over the windows from the last one on, so that each X_I but those of the first window is computed
/// twice. The sums are compensated (Kahan 1965), so that errors do not grow with the number of tiles. Memory
/// O(rows cols (tiles of a window + windows)).
template <Real T>
class CompensatedScan {
 public:
  enum class From { first, last };

  /// The memory of the sums is in the workspace.
  CompensatedScan(From from, const Windows& windows, Index rows, Index cols, double slope, Workspace& workspace)
      : m_from(from),
        m_windows(windows),
        m_rows(rows),
        m_cols(cols),
        m_stride((rows * cols + line - 1) / line * line),
        m_slope(slope),
        m_sums(workspace.take<T>((std::min(windows.size, windows.tiles) + 1) * m_stride)),
        m_decays(workspace.take<Decay<T>>(windows.size)),
        m_compensation(workspace.take<T>(m_stride)),
        m_carries(from == From::last ? workspace.take<T>(windows.count() * 2 * m_stride) : nullptr) {}

  /// To be called first. add(I, S, scratch) adds X_I to S (rows,cols); distance(I) is d_I >= 0.
  template <class Add, class Distance>
  void prepare(const Team& team, Add&& add, Distance&& distance) {
    if (m_from == From::first) return;
    const Index last = m_windows.count() - 1;
    if (last >= 0) std::fill_n(carry(last), 2 * m_stride, T(0));
    for (Index window = last; window > 0; --window) {
      fill(window, team, add, distance);
      T* compensation = std::copy_n(sum(m_windows.begin(window)), m_stride, carry(window - 1));
      std::copy_n(m_compensation, m_stride, compensation);
    }
  }

  /// Computes the sums of the tiles of a window; to be called for one window after the other.
  template <class Add, class Distance>
  void fill(Index window, const Team& team, Add&& add, Distance&& distance) {
    const Index begin = m_windows.begin(window), end = m_windows.end(window);
    if (m_from == From::last) {
      std::copy_n(carry(window), m_stride, m_sums + (end - begin) * m_stride);
      std::copy_n(carry(window) + m_stride, m_stride, m_compensation);
    } else if (window > 0) {
      std::copy_n(m_sums + m_windows.size * m_stride, m_stride, m_sums);
    } else {
      std::fill_n(m_sums, m_stride, T(0));
      std::fill_n(m_compensation, m_stride, T(0));
    }
    m_begin = begin;
    team.run(end - begin, [&](Index task, Workspace& scratch) {
      std::fill_n(sum(begin + task), m_stride, T(0));
      add(begin + task, at(begin + task), scratch);
    });
    for (Index I = begin; I < end; ++I) m_decays[I - begin] = decay_of<T>(m_slope * static_cast<double>(distance(I)));
    constexpr Index piece = 1024;
    team.run((m_stride + piece - 1) / piece, [&](Index task, Workspace&) {
      const Index from = task * piece, count = std::min(piece, m_stride - from);
      T* compensation = m_compensation + from;
      for (Index step = 0; step < end - begin; ++step) {
        const Index I = m_from == From::first ? begin + step : end - 1 - step;
        const auto [whole, part] = m_decays[I - begin];
        T* s = sum(I) + from;
        const T* before = sum(m_from == From::first ? I - 1 : I + 1) + from;
        NPRF_INDEPENDENT_ITERATIONS
        for (Index k = 0; k < count; ++k) {
          const T more = s[k] + (part * (before[k] + compensation[k]) + whole * compensation[k]);
          s[k] = fast_two_sum(whole * before[k], more, compensation[k]);
        }
      }
    });
  }

  /// S_I (rows,cols), where I is a tile of the window of the last fill(), or the tile before this window in the order
  /// of the sum. S_I is zeros if there is no such tile.
  MatrixMap<T> at(Index I) const { return MatrixMap<T>(sum(I), m_rows, m_cols); }

 private:
  static constexpr Index line =
      64 / static_cast<Index>(sizeof(T));  // scalars of a cache line, to which sums are aligned

  T* sum(Index I) const { return m_sums + (I - m_begin + (m_from == From::first ? 1 : 0)) * m_stride; }

  // (2,m_stride)  the sum of the tile directly after this window, and its compensation
  T* carry(Index window) const { return m_carries + window * 2 * m_stride; }

  From m_from;
  Windows m_windows;
  Index m_rows, m_cols, m_stride;
  double m_slope;
  Index m_begin = 0;   // the first tile of the window of the last fill()
  T* m_sums;           // (tiles of a window + 1,m_stride)
  Decay<T>* m_decays;  // (tiles of a window): exp(slope d_I)
  T* m_compensation;   // (m_stride)  the compensation of the last sum
  T* m_carries;        // (windows,2,m_stride)
};

/// Returns rows i0..i0+rows-1 of X (n,r), with row i multiplied by factor(i), in scratch memory.
template <Real T, class Factor>
MatrixMap<T> scaled_rows(const MatrixView<T>& X, Index i0, Index rows, Workspace& scratch, Factor&& factor) {
  auto Z = scratch.matrix<T>(rows, X.cols());
  for (Index i = 0; i < rows; ++i) set_scaled(writable_row(Z, i), factor(i0 + i), row_of(X, i0 + i));
  return Z;
}

/// S (r,p) += P^T Q. If S has one more column than Q, Q is taken to have a last column of ones.
template <Real T>
void add_outer(MatrixRef<T> S, const MatrixView<T>& P, const MatrixView<T>& Q) {
  const Index p = Q.cols();
  add_product(S.leftCols(p), P.transpose(), Q);  // (r,p)
  constexpr Index some = 64;
  for (Index k0 = 0; S.cols() > p && k0 < P.cols(); k0 += some) {
    const Index count = std::min(some, P.cols() - k0);
    T sums[some] = {};  // of several columns, so that additions do not wait for each other
    for (Index i = 0; i < P.rows(); ++i)
      for (Index k = 0; k < count; ++k) sums[k] += P(i, k0 + k);
    for (Index k = 0; k < count; ++k) S(k0 + k, p) += sums[k];
  }
}

/// S = P^T Q for all rows of P (n,r) and Q (n,p), summed in parts that do not depend on the number of threads.
template <Real T>
void sum_of_outer(const MatrixView<T>& P, const MatrixView<T>& Q, MatrixMap<T> S, const Team& team) {
  constexpr Index most_parts = 32;
  const Index n = P.rows(), parts = std::clamp<Index>(n / 1024, 1, most_parts);
  const Workspace::Scope scope(team.workspace());
  T* sums = team.workspace().template take<T>(parts * S.size());
  const auto sum_of = [&](Index part) {
    return Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>(sums + part * S.size(), S.rows(), S.cols(),
                                                          Eigen::OuterStride<>(S.cols()));
  };
  team.run(parts, [&](Index part, Workspace& scratch) {
    const Index begin = n * part / parts, end = n * (part + 1) / parts;
    MatrixRef<T> sum = sum_of(part);
    sum.setZero();
    add_in_chunks<T>(begin, begin, end, sum, nullptr, scratch, [&](Index from, Index to, MatrixRef<T> more, T*) {
      for (Index i0 = from; i0 < to; i0 += Team::tile) {
        const Index rows = std::min(Team::tile, to - i0);
        add_outer<T>(more, P.middleRows(i0, rows), Q.middleRows(i0, rows));
      }
    });
  });
  S.setZero();
  for (Index part = 0; part < parts; ++part) S += sum_of(part);
}

/// The sums over a tail that each tile of queries needs: sums of keys in contract(), sums of keys and of queries in
/// gradients(). The sum of tile I is one matrix S_I (r,p), with one more column if Q has a column of ones added,
///
///     of keys      S_I = sum of exp(slope |t_j - (pivot_I + edge)|) P_j^T Q_j     over the keys j of tile I
///     of queries   S_I = sum of exp(slope |s_i - pivot_J|) exp(slope |pivot_J - pivot_I|) P_i^T Q_i
///                  over the tiles J that have all keys of tile I, and over the queries i of J
///
/// Query i is in slot s_i and key j in slot t_j. The keys of a tile of queries are those that are in the tail for all
/// of its queries, and pivot_I is a slot of tile I (TailTiles). The tail begins at the lag `edge` (ExponentialTail).
template <Real T>
class TailStates {
 public:
  enum class Of { keys, queries };

  /// For P (n,r) and Q (n,p); `ones` is the number of columns of ones after those of Q, 0 or 1.
  TailStates(Of of, const TailTiles<T>& tiles, const MatrixView<T>& P, const MatrixView<T>& Q, const Windows& windows,
             const Team& team, Index ones = 0)
      : m_of(of),
        m_tiles(tiles),
        m_P(P),
        m_Q(Q),
        m_sums((of == Of::keys) == tiles.before() ? From::first : From::last, windows, P.cols(), Q.cols() + ones,
               tiles.tail().slope, team.workspace()) {
    m_sums.prepare(team, adder(), distances());
  }

  const TailTiles<T>& tiles() const { return m_tiles; }

  /// fill() and at() are as in CompensatedScan; S_I has p + ones columns.
  void fill(Index window, const Team& team) { m_sums.fill(window, team, adder(), distances()); }

  MatrixMap<T> at(Index I) const { return m_sums.at(I); }

 private:
  using From = typename CompensatedScan<T>::From;
  static constexpr Index piece = 128, most_in_sequence = 32 * piece;

  auto adder() const {
    return [this](Index I, MatrixMap<T> S, Workspace& scratch) {
      if (m_of == Of::keys)
        add(m_tiles.new_keys(I), S, scratch, [&](Index j) { return m_tiles.key_distance(I, j); });
      else
        add(m_tiles.queries(I), S, scratch, [&](Index i) { return m_tiles.query_distance(I, i); });
    };
  }
  auto distances() const {
    return [this](Index I) { return m_tiles.distance(I, m_of == Of::keys ? m_tiles.inner(I) : m_tiles.outer(I)); };
  }

  // S += sum over the rows of exp(slope distance(i)) P_i^T Q_i. Many rows are summed in halves, so that rounding errors
  // do not grow with their number
  template <class Distance>
  void add(RowRange range, MatrixMap<T>& S, Workspace& scratch, Distance&& distance) const {
    const ExponentialTail<T>& tail = m_tiles.tail();
    if (range.end - range.begin > most_in_sequence) {
      const Index middle = range.begin + (range.end - range.begin) / 2;
      const Workspace::Scope scope(scratch);
      auto half = scratch.matrix<T>(S.rows(), S.cols());
      half.setZero();
      add({middle, range.end}, half, scratch, distance);
      add({range.begin, middle}, S, scratch, distance);
      S += half;
      return;
    }
    for (Index i0 = range.begin; i0 < range.end; i0 += piece) {
      const Index rows = std::min(piece, range.end - i0);
      if (tail.flat()) {
        add_outer<T>(S, m_P.middleRows(i0, rows), m_Q.middleRows(i0, rows));
        continue;
      }
      const Workspace::Scope scope(scratch);
      const auto Z = scaled_rows<T>(m_P, i0, rows, scratch, [&](Index i) { return tail.power(distance(i)); });
      add_outer<T>(S, Z, m_Q.middleRows(i0, rows));
    }
  }

  Of m_of;
  TailTiles<T> m_tiles;
  const MatrixView<T>&m_P, &m_Q;
  CompensatedScan<T> m_sums;
};

}  // namespace nprf::toeplitz
