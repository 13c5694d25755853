// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Gradients with one row for each slot, as FFT engines compute them: in the caller's storage if no slot is empty, else
/// in the workspace, from where copy_back() copies the rows of the tokens.
template <Real T>
class SlotGradients {
 public:
  SlotGradients(const Factors<T>& x, const SlotRows& queries, const SlotRows& keys, GradientRefs<T>& out,
                const GradientSizes<T>& sizes, const Team& team)
      : m_queries(x.queries.slots),
        m_keys(x.keys.slots),
        m_q(queries),
        m_k(keys),
        m_out(out),
        m_sizes(sizes),
        m_gaps_q(x.queries.slots.count < queries.count),
        m_gaps_k(x.keys.slots.count < keys.count),
        m_dA(team.workspace().template matrix<T>(m_gaps_q ? queries.count : 0, x.A.cols())),
        m_dB(team.workspace().template matrix<T>(m_gaps_k ? keys.count : 0, x.B.cols())),
        m_dU(team.workspace().template matrix<T>(m_gaps_k ? keys.count : 0, x.U.cols())),
        m_size_rows(team.workspace().template take<T>(m_gaps_q ? queries.count : 0)),
        m_size_keys(team.workspace().template take<T>(m_gaps_k ? keys.count : 0)) {
    if (!sizes || !m_gaps_q) return;
    std::fill_n(m_size_rows, queries.count, T(0));
    for (Index i = 0; i < x.queries.slots.count; ++i) m_size_rows[m_q.first + x.queries.slots[i]] = sizes.rows[i];
  }

  GradientRefs<T> refs() { return refs(m_out.dc); }
  /// The same, with another dc.
  GradientRefs<T> refs(Eigen::Ref<Vector<T>> dc) {
    return {m_gaps_q ? MatrixRef<T>(m_dA) : m_out.dA, m_gaps_k ? MatrixRef<T>(m_dB) : m_out.dB,
            m_gaps_k ? MatrixRef<T>(m_dU) : m_out.dU, dc};
  }
  GradientSizes<T> sizes() const {
    if (!m_sizes) return {};
    return {m_gaps_q ? m_size_rows : m_sizes.rows, m_gaps_k ? m_size_keys : m_sizes.keys, m_sizes.lags};
  }

  /// Writes the rows of the tokens to `out` and `sizes`.
  void copy_back(const Team& team) {
    if (m_gaps_q) from_slots(m_dA, m_queries, m_out.dA, team, m_q.first);
    if (!m_gaps_k) return;
    from_slots(m_dB, m_keys, m_out.dB, team, m_k.first);
    from_slots(m_dU, m_keys, m_out.dU, team, m_k.first);
    for (Index j = 0; m_sizes && j < m_keys.count; ++j) m_sizes.keys[j] = m_size_keys[m_k.first + m_keys[j]];
  }

 private:
  Slots m_queries, m_keys;
  SlotRows m_q, m_k;
  GradientRefs<T>& m_out;
  const GradientSizes<T>& m_sizes;
  bool m_gaps_q, m_gaps_k;
  MatrixMap<T> m_dA, m_dB, m_dU;
  T *m_size_rows, *m_size_keys;
};

}  // namespace nprf::toeplitz
