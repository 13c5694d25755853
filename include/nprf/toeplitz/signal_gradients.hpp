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

/// One feature and lane_count pairs of columns of U and G, each pair the real and imaginary part of one signal:
///     x = b o (u1 + i u2)    w = a o (g1 + i g2)    t = T(c) x    z = T(c)^T w
/// The kernel is real, so that columns come apart by themselves, and the gradients are sums over pairs and lanes:
///     da += g1 t1 + g2 t2    db += u1 z1 + u2 z2    du += b z    dc += Re(w-x correlation)
/// Two columns share their rounding, two features never do: a feature that is small beside another loses nothing.
template <Real T>
struct GroupSignals {
  using Z = fft::ComplexLanes<T>;

  const T *a, *b;  // of one feature, token after token
  const Z *u, *g;  // rows of tokens
  Z* du;           // (tokens)
  T *da, *db;      // of the feature, token after token
  T* correlation;
};

/// One pair of columns and lane_count features as lanes: the same sums, where a group of columns would leave most of
/// its lanes empty. u2 of the last pair is zero, and its g2 the sizes (gradients.hpp): they add nothing to da, their z2
/// gives the sizes of keys, and the correlation's imaginary part those of lags.
template <Real T>
struct ColumnSignals {
  FeatureBlock<T> a, b;  // rows of tokens
  const T *u, *g;        // two columns side by side, token after token
  const T* g_of_da;      // the same for da: zeros beside the sizes
  T* du;                 // eight tokens of the one column and then of the other: in_eights()
  MatrixRef<T>*da, *db;  // rows of tokens, all features
  T* correlation;
};

/// The frame around them that FFT engines share: each column of G is scaled to maximum 1 by a power of two and the same
/// column of U by the inverse, so that only dU has to be scaled back.
template <Real T>
class SignalGradients {
 public:
  static constexpr Index blocks = 8;  // of features and of groups, that threads work on

  /// For signals of a length, at least the rows of A and B, and correlations of a size; rows are places, `sizes` (rows
  /// of G) may be null.
  SignalGradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
                  const T* sizes, Index length, Index correlation_size, const Team& team)
      : m_A(A),
        m_B(B),
        m_U(U),
        m_G(G),
        m_sizes(sizes),
        m_r(A.cols()),
        m_length(length),
        m_size(correlation_size),
        m_groups(m_r, U.cols() - 1),
        m_unit(team.workspace().vector<T>(U.cols())),
        m_a(team.workspace(), m_r, length),
        m_b(team.workspace(), m_r, length),
        m_da(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_db(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_correlations(team.workspace().take<T>((blocks + 1) * m_size)) {
    column_units(G, m_unit);
    if (sizes) {  // the last column shares its rounding with the sizes, and is never larger
      const T largest = G.rows() > 0 ? *std::max_element(sizes, sizes + G.rows()) : T(0);
      m_unit[U.cols() - 1] = unit_of(largest);
    }
    team.run_tiles(length, [&](Index j0, Index rows, Workspace&) {
      m_a.read(A, j0, rows);
      m_b.read(B, j0, rows);
    });
    team.run(blocks + 1, [&](Index i, Workspace&) {
      std::fill_n(m_correlations + i * m_size, m_size, T(0));
      if (i == blocks) return;
      const Index first = edge(i, m_r), rows = edge(i + 1, m_r) - first;
      m_da.middleRows(first, rows).setZero();
      m_db.middleRows(first, rows).setZero();
    });
  }

  /// add(GroupSignals, scratch) for all features and groups of columns, add_column(ColumnSignals, scratch) for
  /// all features and the columns that are left over; dU and the keys' sizes (rows of B, or null) are added to.
  template <class Add, class AddColumn>
  void run(GradientRefs<T>& out, T* key_sizes, const Team& team, Add&& add, AddColumn&& add_column) {
    run_groups(out, team, add);
    for (Index k = 0; k < m_groups.left_over; k += 2)
      run_column(m_groups.count * 2 * W + k, k + 1 < m_groups.left_over, out, key_sizes, team, add_column);
    run_column(m_U.cols() - 1, false, out, key_sizes, team, add_column);
    team.run_tiles(m_A.rows(), [&](Index i0, Index rows, Workspace&) { add_rows(m_da, i0, rows, out.dA); });
    team.run_tiles(m_B.rows(), [&](Index j0, Index rows, Workspace&) { add_rows(m_db, j0, rows, out.dB); });
    for (Index i = 1; i <= blocks; ++i)
      for (Index k = 0; k < m_size; ++k) m_correlations[k] += m_correlations[i * m_size + k];
  }

  /// After run: the correlation of all pairs, whose real part is dc, and of the last alone.
  const T* correlation() const { return m_correlations; }
  const T* last_correlation() const { return m_correlations + blocks * m_size; }

 private:
  using Lanes = fft::Lanes<T>;
  using Z = fft::ComplexLanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  template <class Add>
  void run_groups(GradientRefs<T>& out, const Team& team, Add&& add) {
    const Workspace::Scope scope(team.workspace());
    const auto panels = [&](Index rows) {
      const Index size = PairPanel<T>::size(m_length);
      return [&, this, rows, size, values = team.workspace().take<Z>(m_groups.count * size)](Index group) {
        return PairPanel<T>(values + group * size, rows, m_length, m_groups.width(group));
      };
    };
    const auto us = panels(m_B.rows()), gs = panels(m_A.rows()), dus = panels(m_B.rows());
    team.run(m_groups.count, [&](Index group, Workspace&) {
      PairPanel<T> u = us(group), g = gs(group);
      const T* unit = m_unit.data() + group * 2 * W;
      u.read(m_U, group * 2 * W, [=](Index k) { return finite(unit[k]); });
      g.read(m_G, group * 2 * W, [=](Index k) { return finite(1 / unit[k]); });
      dus(group).set_zero();
    });
    team.run_pairs(blocks, [&](Index i, Index j, Workspace& scratch) {
      for (Index group = edge(j, m_groups.count); group < edge(j + 1, m_groups.count); ++group)
        for (Index r = edge(i, m_r); r < edge(i + 1, m_r); ++r) {
          const Workspace::Scope feature_scope(scratch);
          add(GroupSignals<T>{m_a[r], m_b[r], us(group).values, gs(group).values, dus(group).values, m_da.row(r).data(),
                              m_db.row(r).data(), m_correlations + i * m_size},
              scratch);
        }
    });
    team.run(m_groups.count, [&](Index group, Workspace&) {
      const T* unit = m_unit.data() + group * 2 * W;
      dus(group).add_to(out.dU, group * 2 * W, [=](Index k) { return finite(unit[k]); });
    });
  }

  // column p and, if `both`, the one after it; the last with the sizes
  template <class AddColumn>
  void run_column(Index p, bool both, GradientRefs<T>& out, T* key_sizes, const Team& team, AddColumn&& add) {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const bool last = p == m_U.cols() - 1;
    const T units[2] = {m_unit[p], both ? m_unit[p + 1] : m_unit[p]};
    const auto columns = [&](const MatrixView<T>& X, const T* second, const T(&scale)[2]) {
      T* values = workspace.take<T>(2 * m_length);
      for (Index i = 0; i < X.rows(); ++i) {
        values[2 * i] = X(i, p) * scale[0];
        values[2 * i + 1] = both ? X(i, p + 1) * scale[1] : second ? second[i] * scale[1] : T(0);
      }
      std::fill(values + 2 * X.rows(), values + 2 * m_length, T(0));
      return values;
    };
    const T forth[2] = {finite(units[0]), finite(units[1])}, back[2] = {finite(1 / units[0]), finite(1 / units[1])};
    const T* u = columns(m_U, nullptr, forth);
    const T* g_of_da = columns(m_G, nullptr, back);
    const T* g = last && m_sizes ? columns(m_G, m_sizes, back) : g_of_da;
    const Index in_whole_eights = in_eights(m_length + 7, 0);
    T* du = workspace.take<T>(in_whole_eights);
    std::fill_n(du, in_whole_eights, T(0));
    for (Index f = 0; f < m_r; f += W) {
      const Workspace::Scope features_scope(workspace);
      add(ColumnSignals<T>{FeatureBlock<T>(m_A, f), FeatureBlock<T>(m_B, f), u, g, g_of_da, du, &out.dA, &out.dB,
                           last ? m_correlations + blocks * m_size : m_correlations},
          workspace);
    }
    for (Index j = 0; j < m_B.rows(); ++j) {
      out.dU(j, p) += du[in_eights(j, 0)] * forth[0];
      if (both) out.dU(j, p + 1) += du[in_eights(j, 1)] * forth[1];
      if (last && key_sizes) key_sizes[j] += du[in_eights(j, 1)] * forth[1];
    }
  }

  void add_rows(const MatrixMap<T>& sums, Index i0, Index rows, MatrixRef<T>& d) const {
    for (Index i = i0; i < i0 + rows; ++i)
      for (Index r = 0; r < m_r; ++r) d(i, r) += sums(r, i);
  }

  static Index edge(Index block, Index n) { return n * block / blocks; }

  const MatrixView<T>&m_A, &m_B, &m_U, &m_G;
  const T* m_sizes;
  Index m_r, m_length, m_size;
  PairGroups<T> m_groups;
  VectorMap<T> m_unit;
  FeatureColumns<T> m_a, m_b;
  MatrixMap<T> m_da, m_db;
  T* m_correlations;
};

}  // namespace nprf::toeplitz
