// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/leaf.hpp"
#include "nprf/toeplitz/panel.hpp"

namespace nprf::toeplitz {

/// What one pair of features and one group of lane_count columns have to do with the gradients: with the signals
///     x = (b1 + i b2) o u    w = (a1 + i a2) o g    t = T(c) x    z = T(c)^T w
/// and sums over lanes where the lanes' columns are summed,
///     da1 += g t1    da2 += g t2    db1 += u z1    db2 += u z2    du += b1 z1 + b2 z2    dc += w-x correlation
template <Real T>
struct SignalPair {
  using Lanes = fft::Lanes<T>;

  const T *a, *b;      // of two columns side by side, token after token
  const Lanes *u, *g;  // rows of tokens
  Lanes* du;           // (tokens)
  T *da, *db;          // of two columns, eight tokens of the one and then of the other: in_eights()
  T* correlation;
};

/// The frame around it that FFT engines share: each column of G is scaled to maximum 1 and the same column of U by the
/// inverse, so that only dU has to be scaled back; B's columns likewise, and A's by the inverse.
template <Real T>
class SignalGradients {
 public:
  static constexpr Index blocks = 8;  // of features and of columns, that threads work on

  /// For signals of a length, at least the rows of A and B, and correlations of a size.
  SignalGradients(const MatrixView<T>& A, const MatrixView<T>& B, Index length, Index correlation_size,
                  const Team& team)
      : m_n_q(A.rows()),
        m_n_k(B.rows()),
        m_r(A.cols()),
        m_pairs((m_r + 1) / 2),
        m_length(length),
        m_size(correlation_size),
        m_unit(team.workspace().vector<T>(m_r)),
        m_a_unit(team.workspace().vector<T>(m_r)),
        m_no_da(team.workspace().take<bool>(m_r)),
        m_a(team.workspace(), m_pairs, length),
        m_b(team.workspace(), m_pairs, length),
        m_da(team.workspace().matrix<T>(m_pairs, in_eights(m_length + 7, 0))),
        m_db(team.workspace().matrix<T>(m_pairs, in_eights(m_length + 7, 0))),
        m_correlations(team.workspace().take<T>(blocks * m_size)) {
    column_units(A, m_a_unit);
    column_units(B, m_unit);
    std::transform(m_unit.begin(), m_unit.end(), m_no_da, [](T u) { return std::isinf(u); });
    share_units();
    team.run_tiles(length, [&](Index j0, Index rows, Workspace&) {
      for (Index pair = 0; pair < m_pairs; ++pair) {
        m_a.read(pair, A, 2 * pair, m_unit, j0, rows);
        m_b.read(pair, B, 2 * pair, m_unit.cwiseInverse(), j0, rows);
      }
    });
    team.run(blocks, [&](Index i, Workspace&) {
      std::fill_n(m_correlations + i * m_size, m_size, T(0));
      const Index first = edge(i, m_pairs), rows = edge(i + 1, m_pairs) - first;
      m_da.middleRows(first, rows).setZero();
      m_db.middleRows(first, rows).setZero();
    });
  }

  /// B's units, by which A's columns are multiplied.
  const VectorMap<T>& units() const { return m_unit; }

  /// add(pair, scratch) for all pairs of features and the given groups of columns; their dU is added to out.dU.
  template <class Add>
  void run(const MatrixView<T>& U, const MatrixView<T>& G, const ColumnGroups<T>& groups, GradientRefs<T>& out,
           const Team& team, Add&& add) {
    Lanes* units = team.workspace().take<Lanes>(groups.count);
    const auto panels = [&](Index rows) {
      const Index size = Panel<T>::size(m_length);
      return [&, this, rows, size, values = team.workspace().take<Lanes>(groups.count * size)](Index group) {
        return Panel<T>(values + group * size, rows, m_length, groups.width(group));
      };
    };
    const auto us = panels(m_n_k), gs = panels(m_n_q), dus = panels(m_n_k);
    team.run(groups.count, [&](Index group, Workspace&) {
      Panel<T> u = us(group), g = gs(group);
      u.read(U, group * W);
      g.read(G, group * W);
      units[group] = g.units();
      u.scale(finite_lanes<T>(units[group]));
      g.scale(inverse<T>(units[group]));
      dus(group).set_zero();
    });
    team.run_pairs(blocks, [&](Index i, Index j, Workspace& scratch) {
      for (Index group = edge(j, groups.count); group < edge(j + 1, groups.count); ++group)
        for (Index pair = edge(i, m_pairs); pair < edge(i + 1, m_pairs); ++pair) {
          const Workspace::Scope scope(scratch);
          add(SignalPair<T>{m_a[pair], m_b[pair], us(group).values, gs(group).values, dus(group).values,
                            m_da.row(pair).data(), m_db.row(pair).data(), m_correlations + i * m_size},
              scratch);
        }
    });
    team.run(groups.count, [&](Index group, Workspace&) {
      Panel<T> du = dus(group);
      du.scale(finite_lanes<T>(units[group]));
      du.add_to(out.dU, group * W);
    });
  }

  /// Adds dA and dB of all pairs to out's, last of all: then B's and A's columns of zeros get none, whatever a
  /// neighbour's rounding has left there.
  void add_to(GradientRefs<T>& out, const Team& team) {
    team.run_tiles(m_n_q, [&](Index i0, Index rows, Workspace&) { add_rows(m_da, m_unit, i0, rows, out.dA); });
    team.run_tiles(m_n_k,
                   [&](Index j0, Index rows, Workspace&) { add_rows(m_db, m_unit.cwiseInverse(), j0, rows, out.dB); });
    for (Index k = 0; k < m_r; ++k) {
      if (m_no_da[k]) out.dA.col(k).setZero();
      if (std::isinf(m_a_unit[k])) out.dB.col(k).setZero();
    }
  }

  /// The correlations of the first block, and of all once they are summed.
  T* correlations() { return m_correlations; }
  const T* summed_correlations() {
    for (Index i = 1; i < blocks; ++i)
      for (Index k = 0; k < m_size; ++k) m_correlations[k] += m_correlations[i * m_size + k];
    return m_correlations;
  }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  template <class Scale>
  void add_rows(const MatrixMap<T>& sums, const Scale& scale, Index i0, Index rows, MatrixRef<T>& d) const {
    for (Index i = i0; i < i0 + rows; ++i)
      for (Index r = 0; r < m_r; ++r) d(i, r) += scale[r] * sums(r / 2, in_eights(i, r % 2));
  }

  static Index edge(Index block, Index n) { return n * block / blocks; }

  // a column of zeros takes its neighbour's unit: they share their rounding
  void share_units() {
    for (Index r = 0; r < m_r; ++r) {
      if (std::isfinite(m_unit[r])) continue;
      const Index other = r % 2 == 0 ? r + 1 : r - 1;
      m_unit[r] = other < m_r && std::isfinite(m_unit[other]) ? m_unit[other] : T(1);
    }
  }

  Index m_n_q, m_n_k, m_r, m_pairs, m_length, m_size;
  VectorMap<T> m_unit, m_a_unit;
  bool* m_no_da;
  FeaturePairs<T> m_a, m_b;
  MatrixMap<T> m_da, m_db;
  T* m_correlations;
};

}  // namespace nprf::toeplitz
