// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"

namespace nprf::toeplitz {

/// Where the noise in the rows of Y is to go, and that in their sums: (n_q) each; null: nobody asks.
struct RowNoises {
  double *Y = nullptr, *sums = nullptr;
};

/// What the rounding of an FFT leaves in each row of Y = ((A B^T) o C) U, estimated from the signals that pass through
/// it. With x_rp = B_r o U_p, y_rp = T(c) x_rp, N the transform's length and eps the distance from 1 to the next
/// number,
///
///     noise_i = eps sqrt(log2 N) sum_r |A_ir| max_p (|c| |x_rp| + |y_rp|) / sqrt(N)
///
/// for all columns alike: rounding spreads evenly over the rows, whatever they hold. The root of the mean of a column's
/// squared errors is below it; a single entry was never seen beyond 1.5 times it.
template <Real T>
class RowNoise {
 public:
  using Lanes = fft::Lanes<T>;

  /// The squares of x_rp's spectrum and of y_rp's, over N, summed; a signal a lane.
  struct Squares {
    NPRF_ALWAYS_INLINE void add(const fft::ComplexLanes<T> (&z)[8], Lanes Squares::*of) {
      Lanes sum{};
      for (int s = 0; s < 8; ++s) sum += z[s].re * z[s].re + z[s].im * z[s].im;
      this->*of += sum;
    }

    Lanes x{}, y{};
  };

  /// For the signals of r features in some tasks, each of which sees each feature at most once.
  RowNoise(Index tasks, Index r, double c_norm, Index N, Workspace& workspace)
      : m_tasks(tasks),
        m_r(r),
        m_c_norm(c_norm),
        m_N(static_cast<double>(N)),
        m_largest(workspace.take<double>(tasks * r)) {
    std::fill_n(m_largest, tasks * r, 0.0);
  }

  /// |c| |x| + |y| of lane l.
  double size(const Squares& of, Index l) const {
    const double x = static_cast<double>(of.x[l]), y = static_cast<double>(of.y[l]);
    return m_c_norm * std::sqrt(x / m_N) + std::sqrt(y * m_N);
  }

  /// The largest over the columns of a task, for each feature.
  double* of(Index task) { return m_largest + task * m_r; }

  /// noise (n_q) of the rows of A (n_q,r).
  void rows(const MatrixView<T>& A, double* noise, const Team& team) {
    for (Index task = 1; task < m_tasks; ++task)
      for (Index r = 0; r < m_r; ++r) m_largest[r] = std::max(m_largest[r], m_largest[task * m_r + r]);
    const VectorMap<double> largest(m_largest, m_r);
    const double factor = static_cast<double>(std::numeric_limits<T>::epsilon()) * std::sqrt(std::log2(m_N) / m_N);
    team.run_tiles(A.rows(), [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i)
        noise[i] = factor * A.row(i).cwiseAbs().template cast<double>().dot(largest);
    });
  }

 private:
  Index m_tasks, m_r;
  double m_c_norm, m_N;
  double* m_largest;  // (tasks,r)
};

}  // namespace nprf::toeplitz
