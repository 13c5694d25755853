// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf::toeplitz {

/// One feature, and up to lane_count columns of U and G as lanes. Each column gives two signals x and w, and their
/// products with the Toeplitz matrix T(c) of the weights:
///     x = b o u    w = a o g    t = T(c) x    z = T(c)^T w
/// The gradients are sums over columns:
///     da += g t    db += u z    du += b z    dc += correlation of w and x
template <Real T>
struct GroupSignals {
  using Lanes = fft::Lanes<T>;

  const T *a, *b;      // (tokens) of one feature
  const Lanes *u, *g;  // (tokens)
  Lanes* du;           // (tokens)
  T *da, *db;          // (tokens) of the feature
  T* correlation;
};

/// One column, and up to lane_count features as lanes: the sums of GroupSignals, for columns that would leave most
/// lanes empty. For GradientSizes (factors.hpp) g has the sizes of the rows, and u is the last column of U. Then du
/// gives K_j, correlation gives S_l, and there are no da and db.
template <Real T>
struct ColumnSignals {
  FeatureLanes<T> a, b;  // one row for each token
  const T *u, *g;        // (tokens)
  T* du;                 // (tokens)
  MatrixRef<T>*da, *db;  // (tokens,r), all features; null for sizes
  T* correlation;
};

/// The part of the gradients that FFT engines share: it lays out the signals, calls the engine for each pair of a
/// feature and a group of columns, and sums the results. Against overflow and underflow each column of G is divided by
/// its power-of-two scale and the same column of U is multiplied by this scale, so that only dU has to be scaled back.
template <Real T>
class SignalBackward {
 public:
  /// The number of blocks into which the features are divided for threads, and the number of blocks of the groups of
  /// columns.
  static constexpr Index blocks = 8;

  /// For factors with one row for each slot, signals of `length`, which is at least n_q and n_k, and correlations of
  /// `correlation_size` numbers.
  SignalBackward(const Factors<T>& x, const MatrixView<T>& G, const GradientSizes<T>& sizes, Index length,
                 Index correlation_size, const Team& team)
      : m_x(x),
        m_G(G),
        m_sizes(sizes),
        m_r(x.A.cols()),
        m_length(length),
        m_size(correlation_size),
        m_groups(m_r, x.U.cols() - 1),
        m_scales(team.workspace().vector<T>(x.U.cols())),
        m_a(team.workspace(), m_r, length),
        m_b(team.workspace(), m_r, length),
        m_da(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_db(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_correlations(team.workspace().take<T>((blocks + 1) * m_size)) {
    column_scales(G, m_scales);
    if (sizes && G.rows() > 0)  // the last column of G is no larger than the sizes
      m_scales[x.U.cols() - 1] = power_of_two_scale(*std::max_element(sizes.rows, sizes.rows + G.rows()));
    team.run_tiles(length, [&](Index j0, Index rows, Workspace&) {
      for (Index r = 0; r < m_r; ++r) {
        m_a.read(r, x.A, r, 1, j0, rows);
        m_b.read(r, x.B, r, 1, j0, rows);
      }
    });
    team.run(blocks + 1, [&](Index i, Workspace&) {
      std::fill_n(m_correlations + i * m_size, m_size, T(0));
      if (i == blocks) return;
      const Index first = edge(i, m_r), rows = edge(i + 1, m_r) - first;
      for (MatrixMap<T>* sums : {&m_da, &m_db})
        std::fill_n(sums->data() + first * sums->cols(), rows * sums->cols(), T(0));
    });
  }

  /// Calls add(GroupSignals, scratch) for all features and groups of columns, and add_column(ColumnSignals, scratch)
  /// for all features and each left-over column. Adds to dA, dB, dU and the sums of keys.
  template <class Add, class AddColumn>
  void run(GradientRefs<T>& out, const Team& team, Add&& add, AddColumn&& add_column) {
    run_groups(out, team, add);
    const Index last = m_x.U.cols() - 1;
    for (Index p = last - m_groups.left_over; p <= last; ++p)
      run_column({p, m_G.data() + p, out.dU.data() + p, m_G.outerStride(), out.dU.outerStride(), &out.dA, &out.dB,
                  m_correlations},
                 team, add_column);
    if (m_sizes)
      run_column({last, m_sizes.rows, m_sizes.keys, 1, 1, nullptr, nullptr, m_correlations + blocks * m_size}, team,
                 add_column);
    team.run_tiles(m_x.A.rows(), [&](Index i0, Index rows, Workspace&) { add_rows(m_da, i0, rows, out.dA); });
    team.run_tiles(m_x.B.rows(), [&](Index j0, Index rows, Workspace&) { add_rows(m_db, j0, rows, out.dB); });
    for (Index i = 1; i < blocks; ++i)
      for (Index k = 0; k < m_size; ++k) m_correlations[k] += m_correlations[i * m_size + k];
  }

  /// After run(): the correlation summed over all columns of G, and the correlation for the sizes of GradientSizes.
  const T* correlation() const { return m_correlations; }
  const T* size_correlation() const { return m_correlations + blocks * m_size; }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  template <class Add>
  void run_groups(GradientRefs<T>& out, const Team& team, Add&& add) {
    const Workspace::Scope scope(team.workspace());
    const auto all_groups = [&](Index rows) {
      const Index size = ColumnLanes<T>::size(m_length);
      return [&, this, rows, size, values = team.workspace().take<Lanes>(m_groups.count * size)](Index group) {
        return ColumnLanes<T>(values + group * size, rows, m_length, m_groups.width(group));
      };
    };
    const auto scale = [this](Index group) {
      return fft::load_lanes(m_scales.data() + group * W, m_groups.width(group));
    };
    const auto us = all_groups(m_x.B.rows()), gs = all_groups(m_x.A.rows()), dus = all_groups(m_x.B.rows());
    team.run(m_groups.count, [&](Index group, Workspace&) {
      ColumnLanes<T> u = us(group), g = gs(group);
      u.read(m_x.U, group * W);
      u.scale(finite_lanes<T>(scale(group)));
      g.read(m_G, group * W);
      g.scale(inverse<T>(scale(group)));
      dus(group).set_zero();
    });
    team.run_pairs(blocks, [&](Index i, Index j, Workspace& scratch) {
      for (Index group = edge(j, m_groups.count); group < edge(j + 1, m_groups.count); ++group)
        for (Index r = edge(i, m_r); r < edge(i + 1, m_r); ++r) {
          const Workspace::Scope feature_scope(scratch);
          add(GroupSignals<T>{m_a[r], m_b[r], us(group).values, gs(group).values, dus(group).values, &m_da(r, 0),
                              &m_db(r, 0), m_correlations + i * m_size},
              scratch);
        }
    });
    team.run(m_groups.count, [&](Index group, Workspace&) {
      ColumnLanes<T> du = dus(group);
      du.scale(finite_lanes<T>(scale(group)));
      du.add_to(out.dU, group * W);
    });
  }

  // column p of U, a column of G, and where the gradients of their product are added
  struct Column {
    Index p;
    const T* g;
    T* du;
    Index g_step, du_step;  // from one entry of the column to the next
    MatrixRef<T>*dA, *dB;   // null for sizes
    T* correlation;
  };
  template <class AddColumn>
  void run_column(const Column& of, const Team& team, AddColumn&& add) {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const T scale = finite(m_scales[of.p]), inverse_scale = finite(1 / m_scales[of.p]);
    T *u = workspace.take<T>(m_length), *g = workspace.take<T>(m_length), *sums = workspace.take<T>(m_length);
    for (Index j = 0; j < m_length; ++j) {
      u[j] = j < m_x.U.rows() ? m_x.U(j, of.p) * scale : T(0);
      g[j] = j < m_G.rows() ? of.g[j * of.g_step] * inverse_scale : T(0);
      sums[j] = 0;
    }
    for (Index f = 0; f < m_r; f += W) {
      const Workspace::Scope features_scope(workspace);
      add(ColumnSignals<T>{{m_x.A, f}, {m_x.B, f}, u, g, sums, of.dA, of.dB, of.correlation}, workspace);
    }
    for (Index j = 0; j < m_x.B.rows(); ++j) of.du[j * of.du_step] += sums[j] * scale;
  }

  void add_rows(const MatrixMap<T>& sums, Index i0, Index rows, MatrixRef<T>& d) const {
    for (Index i = i0; i < i0 + rows; ++i)
      for (Index r = 0; r < m_r; ++r) d(i, r) += sums(r, i);
  }

  static Index edge(Index block, Index n) { return n * block / blocks; }

  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  GradientSizes<T> m_sizes;
  Index m_r, m_length, m_size;
  ColumnGroups<T> m_groups;
  VectorMap<T> m_scales;
  FeatureColumns<T> m_a, m_b;
  MatrixMap<T> m_da, m_db;
  T* m_correlations;
};

}  // namespace nprf::toeplitz
