// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <complex>
#include <limits>
#include <memory>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/fftw.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/engine.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"

namespace nprf::toeplitz {

/// An FftEngine that computes Y = ((A B^T) o C) U by the library FFTW. Gradients and error bounds are those of
/// FftEngine. The bounds hold because the signals x = B_r o U_p, of columns scaled by powers of two, and the length of
/// the transforms are the same.
///
/// Time O(r p n log n); workspace r (n_q + n_k) + p n_q scalars, and about 6 n scalars for each thread. Threads share
/// out columns of U.
template <Real T>
class FftwEngine : public FftEngine<T> {
 public:
  static constexpr Engine names[] = {Engine::fftw};
  static constexpr bool is_automatic = false;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// Not modelled: Engine::automatic does not choose this engine.
  static double cost(const CostInputs<T>&) { return std::numeric_limits<double>::quiet_NaN(); }

  FftwEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : FftEngine<T>(lags, span, team),
        m_n_q(span.n_q),
        m_n_k(span.n_k),
        m_plan(fft::RealPlan<T>::shared(this->period())) {
    // y[i] = sum_j c[j-i] x[j] is the cyclic convolution of x with g[-lag mod N] = c[lag]
    const Index N = m_plan->length();
    auto* spectrum = team.workspace().template take<Complex>(m_plan->bins());
    const Workspace::Scope scope(team.workspace());
    T* g = team.workspace().template take<T>(N);
    std::fill_n(g, N, T(0));
    for (Index lag = -(m_n_q - 1); lag < m_n_k; ++lag) g[lag > 0 ? N - lag : -lag] = lags[lag] / static_cast<T>(N);
    m_plan->forward(g, spectrum);
    m_spectrum = spectrum;
  }

  void contract(const Factors<T>& of, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (sums) contract_ones(*this, of, team, sums);
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Factors<T> x = in_slots(of, {m_n_q}, {m_n_k}, team);
    const Index r = x.A.cols();
    auto all = workspace.template matrix<T>(m_n_q, Y.cols());
    auto scales = workspace.template vector<T>(r);
    column_scales(x.B, scales);
    const FeatureColumns<T> a(workspace, r, m_n_q), b(workspace, r, m_n_k);
    team.run(r, [&](Index k, Workspace&) {
      a.read(k, x.A, k, finite(scales[k]), 0, m_n_q);
      b.read(k, x.B, k, finite(1 / scales[k]), 0, m_n_k);
    });
    team.run(Y.cols(), [&](Index p, Workspace& scratch) {
      const ScaledColumn<T> u(x.U, p, scratch);
      T* y = scratch.template take<T>(m_n_q);
      std::fill_n(y, m_n_q, T(0));
      T* signal = scratch.template take<T>(m_plan->length());
      auto* bins = scratch.template take<Complex>(m_plan->bins());
      for (Index k = 0; k < r; ++k) add(b[k], u.values, a[k], y, signal, bins);
      for (Index i = 0; i < m_n_q; ++i) all(i, p) = y[i] * finite(u.scale);
    });
    from_slots(all, of.queries.slots, Y, team);
  }

 private:
  using Complex = std::complex<T>;

  // y += a o T(c) (b o u)
  void add(const T* b, const T* u, const T* a, T* y, T* signal, Complex* bins) const {
    for (Index j = 0; j < m_n_k; ++j) signal[j] = b[j] * u[j];
    std::fill(signal + m_n_k, signal + m_plan->length(), T(0));
    m_plan->forward(signal, bins);
    // by parts, because compilers do not vectorise the product of std::complex, which checks for NaN
    T* z = reinterpret_cast<T*>(bins);
    const T* w = reinterpret_cast<const T*>(m_spectrum);
    for (Index k = 0; k < 2 * m_plan->bins(); k += 2) {
      const T re = z[k], im = z[k + 1];
      z[k] = re * w[k] - im * w[k + 1];
      z[k + 1] = re * w[k + 1] + im * w[k];
    }
    m_plan->backward(bins, signal);
    for (Index i = 0; i < m_n_q; ++i) y[i] += a[i] * signal[i];
  }

  Index m_n_q, m_n_k;
  std::shared_ptr<const fft::RealPlan<T>> m_plan;
  const Complex* m_spectrum = nullptr;  // (N/2+1)  the transform of g / N
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
