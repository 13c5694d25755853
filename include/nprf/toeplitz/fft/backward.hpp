// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// One feature and up to lane_count columns of U and G, each column a signal of its own:
///     x = b o u    w = a o g    t = T(c) x    z = T(c)^T w
/// The gradients are sums over columns:
///     da += g t    db += u z    du += b z    dc += w-x correlation
template <Real T>
struct GroupSignals {
  using Lanes = fft::Lanes<T>;

  const T *a, *b;      // of one feature, token after token
  const Lanes *u, *g;  // rows of tokens
  Lanes* du;           // (tokens)
  T *da, *db;          // of the feature, token after token
  T* correlation;
};

/// One column and up to lane_count features as lanes: the same sums, where a group of columns would leave most of its
/// lanes empty. Beside U's last column there are the sizes of rows (gradients.hpp) in place of G's, whose du and
/// correlation are the sizes of keys and lags, and whose da and db nobody asks for.
template <Real T>
struct ColumnSignals {
  FeatureLanes<T> a, b;  // rows of tokens
  const T *u, *g;        // token after token
  T* du;                 // likewise
  MatrixRef<T>*da, *db;  // rows of tokens, all features; null for sizes
  T* correlation;
};

/// The frame around them that FFT engines share: each column of G is scaled to maximum 1 by a power of two and the same
/// column of U by the inverse, lest products over- or underflow, so that only dU has to be scaled back.
template <Real T>
class SignalBackward {
 public:
  static constexpr Index blocks = 8;  // of features and of groups, that threads work on

  /// For signals of a length, at least the rows of A and B, and correlations of a size; rows are places.
  SignalBackward(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
                 const GradientSizes<T>& sizes, Index length, Index correlation_size, const Team& team)
      : m_A(A),
        m_B(B),
        m_U(U),
        m_G(G),
        m_sizes(sizes),
        m_r(A.cols()),
        m_length(length),
        m_size(correlation_size),
        m_groups(m_r, U.cols() - 1),
        m_scales(team.workspace().vector<T>(U.cols())),
        m_a(team.workspace(), m_r, length),
        m_b(team.workspace(), m_r, length),
        m_da(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_db(team.workspace().matrix<T>(m_r, staggered<T>(length))),
        m_correlations(team.workspace().take<T>((blocks + 1) * m_size)) {
    column_scales(G, m_scales);
    if (sizes && G.rows() > 0)  // the last column is never larger
      m_scales[U.cols() - 1] = power_of_two_scale(*std::max_element(sizes.rows, sizes.rows + G.rows()));
    team.run_tiles(length, [&](Index j0, Index rows, Workspace&) {
      for (Index r = 0; r < m_r; ++r) {
        m_a.read(r, A, r, 1, j0, rows);
        m_b.read(r, B, r, 1, j0, rows);
      }
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
  /// all features and the columns that are left over; dA, dB, dU and the keys' sizes are added to.
  template <class Add, class AddColumn>
  void run(GradientRefs<T>& out, const Team& team, Add&& add, AddColumn&& add_column) {
    run_groups(out, team, add);
    const Index last = m_U.cols() - 1;
    for (Index p = last - m_groups.left_over; p <= last; ++p)
      run_column(p, m_G.col(p), &out.dA, &out.dB, out.dU.col(p), m_correlations, team, add_column);
    if (m_sizes)
      run_column(last, Vector<T>::Map(m_sizes.rows, m_G.rows()), nullptr, nullptr,
                 Vector<T>::Map(m_sizes.keys, m_B.rows()), m_correlations + blocks * m_size, team, add_column);
    team.run_tiles(m_A.rows(), [&](Index i0, Index rows, Workspace&) { add_rows(m_da, i0, rows, out.dA); });
    team.run_tiles(m_B.rows(), [&](Index j0, Index rows, Workspace&) { add_rows(m_db, j0, rows, out.dB); });
    for (Index i = 1; i < blocks; ++i)
      for (Index k = 0; k < m_size; ++k) m_correlations[k] += m_correlations[i * m_size + k];
  }

  /// After run: the correlation of all columns, and that of the sizes.
  const T* correlation() const { return m_correlations; }
  const T* size_correlation() const { return m_correlations + blocks * m_size; }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  template <class Add>
  void run_groups(GradientRefs<T>& out, const Team& team, Add&& add) {
    const Workspace::Scope scope(team.workspace());
    const auto panels = [&](Index rows) {
      const Index size = Panel<T>::size(m_length);
      return [&, this, rows, size, values = team.workspace().take<Lanes>(m_groups.count * size)](Index group) {
        return Panel<T>(values + group * size, rows, m_length, m_groups.width(group));
      };
    };
    const auto scale = [this](Index group) {
      return fft::load_lanes(m_scales.data() + group * W, m_groups.width(group));
    };
    const auto us = panels(m_B.rows()), gs = panels(m_A.rows()), dus = panels(m_B.rows());
    team.run(m_groups.count, [&](Index group, Workspace&) {
      Panel<T> u = us(group), g = gs(group);
      u.read(m_U, group * W);
      u.scale(finite_lanes<T>(scale(group)));
      g.read(m_G, group * W);
      g.scale(inverse<T>(scale(group)));
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
      Panel<T> du = dus(group);
      du.scale(finite_lanes<T>(scale(group)));
      du.add_to(out.dU, group * W);
    });
  }

  // column p of U with a column of G
  template <class Column, class Sums, class AddColumn>
  void run_column(Index p, const Column& g, MatrixRef<T>* da, MatrixRef<T>* db, Sums du, T* correlation,
                  const Team& team, AddColumn&& add) {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const T forth = finite(m_scales[p]), back = finite(1 / m_scales[p]);
    auto u = workspace.vector<T>(m_length), scaled_g = workspace.vector<T>(m_length),
         sums = workspace.vector<T>(m_length);
    u.setZero(), scaled_g.setZero(), sums.setZero();
    u.head(m_U.rows()) = m_U.col(p) * forth;
    scaled_g.head(m_G.rows()) = g * back;
    for (Index f = 0; f < m_r; f += W) {
      const Workspace::Scope features_scope(workspace);
      add(ColumnSignals<T>{{m_A, f}, {m_B, f}, u.data(), scaled_g.data(), sums.data(), da, db, correlation}, workspace);
    }
    du += sums.head(m_B.rows()) * forth;
  }

  void add_rows(const MatrixMap<T>& sums, Index i0, Index rows, MatrixRef<T>& d) const {
    for (Index i = i0; i < i0 + rows; ++i)
      for (Index r = 0; r < m_r; ++r) d(i, r) += sums(r, i);
  }

  static Index edge(Index block, Index n) { return n * block / blocks; }

  const MatrixView<T>&m_A, &m_B, &m_U, &m_G;
  GradientSizes<T> m_sizes;
  Index m_r, m_length, m_size;
  ColumnGroups<T> m_groups;
  VectorMap<T> m_scales;
  FeatureColumns<T> m_a, m_b;
  MatrixMap<T> m_da, m_db;
  T* m_correlations;
};

}  // namespace nprf::toeplitz
