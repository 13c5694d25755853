// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Where an FFT engine puts its gradients, a row for each slot: into the caller's storage where each slot has a token,
/// else into the workspace, from where put_back() takes the tokens' rows.
template <Real T>
class SlotGradients {
 public:
  /// The rows of one side: how many, and which is that of slot 0.
  struct Side {
    Index rows, first = 0;
  };

  /// Refers to `out` and `sizes`.
  SlotGradients(const Factors<T>& x, const Side& queries, const Side& keys, GradientRefs<T>& out,
                const GradientSizes<T>& sizes, const Team& team)
      : m_queries(x.queries.slots),
        m_keys(x.keys.slots),
        m_q(queries),
        m_k(keys),
        m_out(out),
        m_sizes(sizes),
        m_gaps_q(x.queries.slots.count < queries.rows),
        m_gaps_k(x.keys.slots.count < keys.rows),
        m_dA(team.workspace().template matrix<T>(m_gaps_q ? queries.rows : 0, x.A.cols())),
        m_dB(team.workspace().template matrix<T>(m_gaps_k ? keys.rows : 0, x.B.cols())),
        m_dU(team.workspace().template matrix<T>(m_gaps_k ? keys.rows : 0, x.U.cols())),
        m_size_rows(team.workspace().template take<T>(m_gaps_q ? queries.rows : 0)),
        m_size_keys(team.workspace().template take<T>(m_gaps_k ? keys.rows : 0)) {
    if (!sizes || !m_gaps_q) return;
    std::fill_n(m_size_rows, queries.rows, T(0));
    for (Index i = 0; i < x.queries.slots.count; ++i) m_size_rows[m_q.first + x.queries.slots[i]] = sizes.rows[i];
  }

  GradientRefs<T> refs() { return refs(m_out.dc); }
  /// The same with dc elsewhere.
  GradientRefs<T> refs(Eigen::Ref<Vector<T>> dc) {
    return {m_gaps_q ? MatrixRef<T>(m_dA) : m_out.dA, m_gaps_k ? MatrixRef<T>(m_dB) : m_out.dB,
            m_gaps_k ? MatrixRef<T>(m_dU) : m_out.dU, dc};
  }
  GradientSizes<T> sizes() const {
    if (!m_sizes) return {};
    return {m_gaps_q ? m_size_rows : m_sizes.rows, m_gaps_k ? m_size_keys : m_sizes.keys, m_sizes.lags};
  }

  void put_back(const Team& team) {
    if (m_gaps_q) from_slots(m_dA, m_queries, m_out.dA, team, m_q.first);
    if (!m_gaps_k) return;
    from_slots(m_dB, m_keys, m_out.dB, team, m_k.first);
    from_slots(m_dU, m_keys, m_out.dU, team, m_k.first);
    for (Index j = 0; m_sizes && j < m_keys.count; ++j) m_sizes.keys[j] = m_size_keys[m_k.first + m_keys[j]];
  }

 private:
  Slots m_queries, m_keys;
  Side m_q, m_k;
  GradientRefs<T>& m_out;
  const GradientSizes<T>& m_sizes;
  bool m_gaps_q, m_gaps_k;
  MatrixMap<T> m_dA, m_dB, m_dU;
  T *m_size_rows, *m_size_keys;
};

}  // namespace nprf::toeplitz
