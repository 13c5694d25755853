// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <complex>
#include <limits>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/backward_error_bound.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fftw/segmented_fft.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/ones.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by FFTW, for two columns at a time as real and imaginary part of one signal.
///
/// Time O(r p n log n); workspace about 2 (r + p) (n_q + n_k) scalars, a third more for the gradients. Two columns of a
/// signal share their rounding errors. So each column of U is first divided by its power-of-two scale, which is exact.
/// Rounding errors are relative to the largest row of Y: a much smaller row loses digits, up to all of them. Threads
/// share out pairs of columns.
template <Real T>
class FftwEngine {
 public:
  static constexpr Engine names[] = {Engine::fftw};
  static constexpr Rounding rounding = Rounding::global;
  static constexpr bool accepts_key_log_scales = false, is_automatic = false;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// Not modelled: Engine::automatic does not choose this engine.
  static double cost(const CostInputs<T>&) { return std::numeric_limits<double>::quiet_NaN(); }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its tables are in the team's workspace.
  FftwEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q), m_n_k(span.n_k), m_transform(span.n_q + span.n_k - 1, team) {
    // y[i] = sum_j c[j-i] x[j] is the cyclic convolution of x with g[-lag mod N] = c[lag]
    const Index N = classes().period(), L = classes().length;
    Complex* spectrum = team.workspace().take<Complex>(N);
    const Workspace::Scope scope(team.workspace());
    auto g = team.workspace().vector<T>(N), ones = team.workspace().vector<T>(N), zeros = team.workspace().vector<T>(N);
    g.setZero();
    ones.setOnes();
    zeros.setZero();
    for (Index lag = -(m_n_q - 1); lag < m_n_k; ++lag) g[lag > 0 ? N - lag : -lag] = lags[lag] / static_cast<T>(N);
    team.run(classes().count, [&](Index q, Workspace& scratch) {
      m_transform.forward(q, N, ones.data(), g.data(), zeros.data(), scratch.take<Complex>(L), spectrum + q * L);
    });
    m_spectrum = spectrum;
    for (Index lag = -(m_n_q - 1); lag < m_n_k; ++lag) m_norms.add(static_cast<double>(lags[lag]));
  }

  /// Y (n_q,p) = ((A B^T) o C) U; sums (n_q), unless it is null, the same for a column of ones.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (sums) contract_ones(*this, x, team, sums);
    const Index r_end = x.A.cols(), p_end = x.U.cols(), pairs = (p_end + 1) / 2;
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    auto At = workspace.matrix<T>(r_end, m_n_q), Bt = workspace.matrix<T>(r_end, m_n_k);
    auto Ut = workspace.matrix<T>(2 * pairs, m_n_k), Yt = workspace.matrix<T>(2 * pairs, m_n_q);
    gather(x.A, x.queries.slots, At, team);
    gather(x.B, x.keys.slots, Bt, team);
    gather(x.U, x.keys.slots, Ut, team);
    team.run(pairs, [&](Index pair, Workspace& scratch) {
      const Work work(scratch, classes().length);
      const Index p = 2 * pair;
      auto U = Ut.middleRows(p, 2), Y2 = Yt.middleRows(p, 2);
      const T scales[2] = {power_of_two_scale(U.row(0).cwiseAbs().maxCoeff()),
                           power_of_two_scale(U.row(1).cwiseAbs().maxCoeff())};
      for (Index k : {0, 1}) U.row(k) *= finite(1 / scales[k]);
      Y2.setZero();
      for (Index r = 0; r < r_end; ++r)
        add(&At(r, 0), &Bt(r, 0), &Ut(p, 0), &Ut(p + 1, 0), &Yt(p, 0), &Yt(p + 1, 0), work);
      for (Index k : {0, 1}) Y2.row(k) *= finite(scales[k]);
    });
    scatter(Yt, x.queries.slots, Y, team);
  }

  /// Bounds of the rounding errors of contract(); sizes (n_k) are the largest |U_j.| of each key. Two columns of U
  /// share their rounding errors, and the other column may have the largest |U_j.| at every key.
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
    fft_row_error_bounds(
        m_norms, classes().period(), x, sizes, out, team,
        [this](const SignalNorms& norms, const SignalScale& scale, SignalNorms::Row& Y, SignalNorms::Row& sums) {
          if (Y.maxCoeff() > 0)
            for (Index r = 0; r < Y.size(); ++r) Y[r] = shared_transform_error(Y[r], 2 * sums[r]);
          const double underflow = Underflow<T>::of_signals(classes().period()) / scale.B;  // features are not scaled
          Y += underflow * norms.largest_size();
          sums += underflow;
        });
  }

  /// Bounds of the rounding errors of gradients().
  void gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                             const Team& team) const {
    fft_gradient_error_bounds(m_norms, classes().period(), 2, x, of, out, team);
  }

  /// The gradients for G (n_q,p) = dL/dY, and the sums of `sizes`. Four transforms a signal; contract() has two. Each
  /// column of G is divided by its power-of-two scale and the same column of U is multiplied by it, so that only dU has
  /// to be scaled back. The last column of G shares its signal with the sizes.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>& sizes,
                 const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index r_end = x.A.cols(), period = classes().period();
    BackwardSignals s = gather_signals(x, G, sizes, team);
    team.run_pairs(blocks, [&](Index block, Index pair_block, Workspace& scratch) {
      const Work work(scratch, classes().length);
      for (Index pair = edge(pair_block, s.pairs - 1); pair < edge(pair_block + 1, s.pairs - 1); ++pair)
        for (Index r = edge(block, r_end); r < edge(block + 1, r_end); ++r)
          add_gradients(s.signals(r, pair), s.correlations + block * period, work);
    });
    const Work work(workspace, classes().length);
    for (Index r = 0; r < r_end; ++r) add_gradients(s.signals(r, s.pairs - 1), s.correlations + blocks * period, work);
    scatter_gradients(s, x, out, sizes, team);
    lag_gradient(s.correlations, out.dc, sizes.lags, team);
  }

  Index longest_plain_sum(Index n_k) const { return std::min(n_k, plain_sum_of_fft); }

 private:
  using Complex = std::complex<T>;
  static constexpr Index blocks = 8;

  // the scratch memory of one thread
  struct Work {
    Work(Workspace& scratch, Index L)
        : X(scratch.take<Complex>(L)), W(scratch.take<Complex>(L)), z(scratch.take<Complex>(L)) {}
    Complex *X, *W, *z;  // (L)
  };

  const SegmentedFft& classes() const { return m_transform.classes(); }
  const Complex* spectrum(Index q) const { return m_spectrum + q * classes().length; }
  static Index edge(Index block, Index n) { return n * block / blocks; }

  // y1 + i y2 += a o T(c) (b o (u1 + i u2))
  void add(const T* a, const T* b, const T* u1, const T* u2, T* y1, T* y2, const Work& work) const {
    for (Index q = 0; q < classes().count; ++q) {
      m_transform.forward(q, m_n_k, b, u1, u2, work.z, work.X);
      m_transform.multiply(work.X, spectrum(q), classes().length);
      m_transform.backward(q, m_n_q, work.X, work.z, [=](Index i, T re, T im) {
        y1[i] += a[i] * re;
        y2[i] += a[i] * im;
      });
    }
  }

  // the rows of a feature and of two columns, as real and imaginary part of a signal
  struct PairSignals {
    const T *a, *b, *u1, *u2, *g1, *g2;
    T *da, *db, *du1, *du2;
    bool g2_is_sizes;  // then u2 is zero, and dA has no share of g2
  };

  // with x = b o (u1 + i u2), w = a o (g1 + i g2), t = T(c) x, z = T(c)^T w:
  //     da += g1 t1 + g2 t2    db += u1 z1 + u2 z2    du += b o z    correlation[k] += conj(W[k]) X[k]
  void add_gradients(const PairSignals& s, Complex* correlation, const Work& work) const {
    const Index L = classes().length;
    for (Index q = 0; q < classes().count; ++q) {
      m_transform.forward(q, m_n_k, s.b, s.u1, s.u2, work.z, work.X);
      m_transform.forward(q, m_n_q, s.a, s.g1, s.g2, work.z, work.W);
      add_product_with_conjugate(work.X, work.W, correlation + q * L, L);
      m_transform.multiply(work.X, spectrum(q), L);
      m_transform.multiply_conjugate(work.W, spectrum(q), L);
      m_transform.backward(q, m_n_q, work.X, work.z, [=](Index i, T t1, T t2) {
        s.da[i] += s.g1[i] * t1 + (s.g2_is_sizes ? T(0) : s.g2[i] * t2);
      });
      m_transform.backward(q, m_n_k, work.W, work.z, [=](Index j, T z1, T z2) {
        s.db[j] += s.u1[j] * z1 + s.u2[j] * z2;
        s.du1[j] += s.b[j] * z1;
        s.du2[j] += s.b[j] * z2;
      });
    }
  }

  // The factors and their gradients with features and columns as rows, (r,n) and (2 pairs,n), where n = n_q or n_k
  // slots. The last pair is the last column and the sizes.
  struct BackwardSignals {
    BackwardSignals(Index r, Index p, Index n_q, Index n_k, Workspace& workspace)
        : pairs(p / 2 + 1),
          A(workspace.matrix<T>(r, n_q)),
          dA(workspace.matrix<T>(r, n_q)),
          B(workspace.matrix<T>(r, n_k)),
          dB(workspace.matrix<T>(r, n_k)),
          U(workspace.matrix<T>(2 * pairs, n_k)),
          dU(workspace.matrix<T>(2 * pairs, n_k)),
          G(workspace.matrix<T>(2 * pairs, n_q)),
          scales(workspace.vector<T>(2 * pairs)) {}

    PairSignals signals(Index r, Index pair) {
      const Index p = 2 * pair;
      return {&A(r, 0),  &B(r, 0),  &U(p, 0),  &U(p + 1, 0),  &G(p, 0),         &G(p + 1, 0),
              &dA(r, 0), &dB(r, 0), &dU(p, 0), &dU(p + 1, 0), pair == pairs - 1};
    }

    Index pairs;
    MatrixMap<T> A, dA, B, dB, U, dU, G;
    VectorMap<T> scales;
    Complex* correlations;  // (blocks+1,N): of each block of features, and of the last pair
  };

  BackwardSignals gather_signals(const Factors<T>& x, const MatrixView<T>& G, const GradientSizes<T>& sizes,
                                 const Team& team) const {
    const Index r_end = x.A.cols(), last = x.U.cols() - 1, period = classes().period();
    BackwardSignals s(r_end, last + 1, m_n_q, m_n_k, team.workspace());
    s.correlations = team.workspace().template take<Complex>((blocks + 1) * period);
    gather(x.A, x.queries.slots, s.A, team);
    gather(x.B, x.keys.slots, s.B, team);
    const auto gather_pairs = [&](const MatrixView<T>& X, const Slots& slots, MatrixMap<T>& Xt) {
      if (X.rows() == 0) {
        Xt.setZero();
        return;
      }
      gather(X.leftCols(last), slots, Xt.topRows(2 * s.pairs - 2), team);
      gather(X.rightCols(1), slots, Xt.bottomRows(2), team);
    };
    gather_pairs(x.U, x.keys.slots, s.U);
    gather_pairs(G, x.queries.slots, s.G);
    for (Index i = 0; sizes && i < x.queries.slots.count; ++i) s.G(2 * s.pairs - 1, x.queries.slots[i]) = sizes.rows[i];
    for (Index p = 0; p < 2 * s.pairs; ++p) s.scales[p] = power_of_two_scale(s.G.row(p).cwiseAbs().maxCoeff());
    // the last column shares its rounding errors with the sizes, which are no smaller
    if (sizes) s.scales[2 * s.pairs - 2] = s.scales[2 * s.pairs - 1];
    team.run(2 * s.pairs, [&](Index p, Workspace&) {
      s.G.row(p) *= finite(1 / s.scales[p]);
      s.U.row(p) *= finite(s.scales[p]);
      s.dU.row(p).setZero();
    });
    team.run(blocks + 1, [&](Index block, Workspace&) {
      std::fill_n(s.correlations + block * period, period, Complex(0));
      if (block == blocks) return;
      const Index r0 = edge(block, r_end), rows = edge(block + 1, r_end) - r0;
      s.dA.middleRows(r0, rows).setZero();
      s.dB.middleRows(r0, rows).setZero();
    });
    return s;
  }

  void scatter_gradients(BackwardSignals& s, const Factors<T>& x, GradientRefs<T>& out, const GradientSizes<T>& sizes,
                         const Team& team) const {
    const Index last = x.U.cols() - 1;
    team.run(2 * s.pairs, [&](Index p, Workspace&) { s.dU.row(p) *= finite(s.scales[p]); });
    scatter(s.dA, x.queries.slots, out.dA, team);
    scatter(s.dB, x.keys.slots, out.dB, team);
    scatter(s.dU, x.keys.slots, out.dU.leftCols(last), team);
    for (Index j = 0; j < x.keys.slots.count; ++j) {
      out.dU(j, last) = s.dU(2 * s.pairs - 2, x.keys.slots[j]);
      if (sizes) sizes.keys[j] = s.dU(2 * s.pairs - 1, x.keys.slots[j]);
    }
  }

  // dc[l] at l + n_q - 1: the real part of the inverse transform, lag l at l mod N. Its imaginary part mixes two
  // columns; that of the last pair is minus the sums of the sizes
  void lag_gradient(Complex* correlations, Eigen::Ref<Vector<T>> dc, T* sizes, const Team& team) const {
    const Index N = classes().period(), L = classes().length;
    Complex* z = team.workspace().take<Complex>(L);
    T *sum = team.workspace().take<T>(N), *size = team.workspace().take<T>(N);
    std::fill_n(sum, N, T(0));
    std::fill_n(size, N, T(0));
    for (Index block = 1; block <= blocks; ++block)
      for (Index k = 0; k < N; ++k) correlations[k] += correlations[block * N + k];
    for (Index q = 0; q < classes().count; ++q) {
      m_transform.backward(q, N, correlations + q * L, z, [=](Index l, T re, T) { sum[l] += re; });
      m_transform.backward(q, N, correlations + blocks * N + q * L, z, [=](Index l, T, T im) { size[l] -= im; });
    }
    const auto at = [&](Index k) { return (N + k - (m_n_q - 1)) % N; };
    for (Index k = 0; k < dc.size(); ++k) dc[k] = sum[at(k)] / static_cast<T>(N);
    for (Index k = 0; sizes && k < m_n_q + m_n_k - 1; ++k) sizes[k] = size[at(k)] / static_cast<T>(N);
  }

  // s_l += x_l conj(w_l)
  static void add_product_with_conjugate(const Complex* x_, const Complex* w_, Complex* s_, Index n) {
    const T *x = reinterpret_cast<const T*>(x_), *w = reinterpret_cast<const T*>(w_);
    T* s = reinterpret_cast<T*>(s_);
    for (Index l = 0; l < n; ++l) {
      s[2 * l] += x[2 * l] * w[2 * l] + x[2 * l + 1] * w[2 * l + 1];
      s[2 * l + 1] += x[2 * l + 1] * w[2 * l] - x[2 * l] * w[2 * l + 1];
    }
  }

  // the columns of X as rows, each token in its slot; zeros in empty slots and in the rows after X's columns
  static void gather(const MatrixView<T>& X, const Slots& slots, MatrixRef<T> Xt, const Team& team) {
    team.run_tiles(Xt.cols(), [&](Index s0, Index size, Workspace&) {
      const Index i0 = slots.below(s0), i_end = slots.below(s0 + size);
      auto part = Xt.block(0, s0, X.cols(), size);
      Xt.block(X.cols(), s0, Xt.rows() - X.cols(), size).setZero();
      if (i_end - i0 == size) {
        part = X.middleRows(i0, size).transpose();
      } else {
        part.setZero();
        for (Index i = i0; i < i_end; ++i) part.col(slots[i] - s0) = X.row(i).transpose();
      }
    });
  }

  // the inverse of gather()
  static void scatter(const MatrixMap<T>& Xt, const Slots& slots, MatrixRef<T> X, const Team& team) {
    team.run_tiles(slots.count, [&](Index i0, Index rows, Workspace&) {
      if (slots.at)
        for (Index i = i0; i < i0 + rows; ++i) X.row(i) = Xt.col(slots[i]).head(X.cols()).transpose();
      else
        X.middleRows(i0, rows) = Xt.block(0, slots[i0], X.cols(), rows).transpose();
    });
  }

  Index m_n_q, m_n_k;
  SegmentedTransform<T> m_transform;
  NormSums m_norms;
  const Complex* m_spectrum = nullptr;  // (Q,L)  of g / N
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
