// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The values of a sequence, divided by a power of two if they are so large or small that weighted sums of them would
/// overflow or lose precision.
template <Real T>
class ScaledValues {
 public:
  /// Of finite v (n_k,d_v), whose largest |v| of each key are `maxima` (n_k); these are divided, too. With
  /// `may_scale` = false the scale is 1. Refers to both, or to a copy in the team's workspace.
  ScaledValues(const MatrixView<T>& v, VectorMap<T> maxima, bool may_scale, const Team& team)
      : m_maxima(maxima),
        m_scale(may_scale && maxima.size() > 0 ? extreme_scale(maxima.maxCoeff()) : T(1)),
        m_rows(divided_by_scale(v, m_scale, team)) {
    if (m_scale != 1) m_maxima /= m_scale;
  }

  T scale() const { return m_scale; }
  const MatrixView<T>& rows() const { return m_rows; }  // v / scale()
  const T* maxima() const { return m_maxima.data(); }   // (n_k)  the largest entry of each row
  T largest() const { return m_maxima.size() > 0 ? m_maxima.maxCoeff() : T(0); }

  /// Saves U = [v 1] and what belongs to it, where rows() are divided by another power of two if they lose nothing by
  /// it. Returns that power, by which y has to be divided too. O(n_k d_v).
  T save(SavedSequence<T>& saved, const Team& team) const {
    const Index n_k = m_rows.rows(), d_v = m_rows.cols();
    const T scale = lossless_scale<T>(m_maxima), inverse_scale = 1 / scale;
    resize(saved.U, n_k, d_v + 1);
    team.run_tiles(n_k, [&](Index j0, Index rows, Workspace&) {
      saved.U.block(j0, 0, rows, d_v) = m_rows.middleRows(j0, rows) * inverse_scale;
      saved.U.block(j0, d_v, rows, 1).setOnes();
    });
    saved.largest_value = largest() * inverse_scale;
    saved.value_exponent = exponent_of(m_scale) + exponent_of(scale);
    return scale;
  }

 private:
  VectorMap<T> m_maxima;
  T m_scale;
  MatrixView<T> m_rows;
};

}  // namespace nprf
