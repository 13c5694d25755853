// SPDX-License-Identifier: MIT
#pragma once

#include <complex>
#include <mutex>

#include "nprf/core/buffer.hpp"
#include "nprf/fft/fftw.hpp"

namespace nprf::bench {

/// B(n, m): the transforms alone of the textbook algorithm, m (d_v + 1) pairs of a real transform of length 2n and its
/// inverse, contiguous and in cache, planned with FFTW_MEASURE.
class BareFftw {
 public:
  BareFftw(Index n, Index m, Index d_v) : m_pairs(m * (d_v + 1)), m_x(2 * n), m_spectrum(n + 1) {
    auto* spectrum = reinterpret_cast<fftwf_complex*>(m_spectrum.data());
    const int length = static_cast<int>(2 * n);
    const std::scoped_lock lock(fft::planner_mutex());
    m_forward = fftwf_plan_dft_r2c_1d(length, m_x.data(), spectrum, FFTW_MEASURE);
    m_backward = fftwf_plan_dft_c2r_1d(length, spectrum, m_x.data(), FFTW_MEASURE);
    if (!m_forward || !m_backward) throw BackendError("FFTW has no plan for a real transform");
    // unscaled pairs would soon overflow; zeros stay, and take as long as other numbers
    std::fill_n(m_x.data(), length, 0.0f);
  }

  ~BareFftw() {
    const std::scoped_lock lock(fft::planner_mutex());
    fftwf_destroy_plan(m_forward);
    fftwf_destroy_plan(m_backward);
  }

  BareFftw(const BareFftw&) = delete;
  BareFftw& operator=(const BareFftw&) = delete;

  void operator()() const {
    for (Index pair = 0; pair < m_pairs; ++pair) {
      fftwf_execute(m_forward);
      fftwf_execute(m_backward);
    }
  }

 private:
  Index m_pairs;
  Buffer<float> m_x;                       // (2n)
  Buffer<std::complex<float>> m_spectrum;  // (n+1)
  fftwf_plan m_forward, m_backward;
};

}  // namespace nprf::bench
