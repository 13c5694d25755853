// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#if !__has_include(<fftw3.h>)
#error "nprf: fftw3.h not found: install FFTW 3, or define NPRF_USE_FFTW=0 to build without it"
#endif
#include <fftw3.h>

#include <complex>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>

#include "nprf/core/buffer.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

/// RAII wrappers of FFTW 3. No other header includes fftw3.h.
namespace nprf::fft {

/// The mutex of FFTW's planner, which is shared by the process and not thread-safe. A program that itself creates or
/// destroys FFTW plans or changes wisdom must hold this mutex meanwhile, and must not call nprf while it holds it.
/// fftw_cleanup would destroy nprf's plans. fftw_plan_with_nthreads also affects nprf's plans.
inline std::mutex& planner_mutex() {
  static std::mutex mutex;
  return mutex;
}

namespace detail {

template <Real T>
struct Fftw;

template <>
struct Fftw<float> {
  using Complex = fftwf_complex;
  using Plan = fftwf_plan;
  static Plan plan(int n, float* in, Complex* out) { return fftwf_plan_dft_r2c_1d(n, in, out, FFTW_ESTIMATE); }
  static Plan plan(int n, Complex* in, float* out) { return fftwf_plan_dft_c2r_1d(n, in, out, FFTW_ESTIMATE); }
  static void execute(Plan plan, float* in, Complex* out) { fftwf_execute_dft_r2c(plan, in, out); }
  static void execute(Plan plan, Complex* in, float* out) { fftwf_execute_dft_c2r(plan, in, out); }
  static void destroy(Plan plan) { fftwf_destroy_plan(plan); }
  static void export_wisdom(void (*write)(char, void*), void* to) { fftwf_export_wisdom(write, to); }
  static void import_wisdom(const char* from) { fftwf_import_wisdom_from_string(from); }
  static void forget_wisdom() { fftwf_forget_wisdom(); }
};

template <>
struct Fftw<double> {
  using Complex = fftw_complex;
  using Plan = fftw_plan;
  static Plan plan(int n, double* in, Complex* out) { return fftw_plan_dft_r2c_1d(n, in, out, FFTW_ESTIMATE); }
  static Plan plan(int n, Complex* in, double* out) { return fftw_plan_dft_c2r_1d(n, in, out, FFTW_ESTIMATE); }
  static void execute(Plan plan, double* in, Complex* out) { fftw_execute_dft_r2c(plan, in, out); }
  static void execute(Plan plan, Complex* in, double* out) { fftw_execute_dft_c2r(plan, in, out); }
  static void destroy(Plan plan) { fftw_destroy_plan(plan); }
  static void export_wisdom(void (*write)(char, void*), void* to) { fftw_export_wisdom(write, to); }
  static void import_wisdom(const char* from) { fftw_import_wisdom_from_string(from); }
  static void forget_wisdom() { fftw_forget_wisdom(); }
};

// While an object exists, FFTW has no wisdom; the destructor restores it. Wisdom that other code has measured would
// change nprf's plans, and so the bits of its results. planner_mutex() must be held. Throws std::bad_alloc.
template <Real T>
class NoWisdom {
 public:
  NoWisdom() {
    Fftw<T>::export_wisdom(&append, this);
    if (m_out_of_memory) throw std::bad_alloc();
    Fftw<T>::forget_wisdom();
  }
  ~NoWisdom() {
    Fftw<T>::forget_wisdom();
    Fftw<T>::import_wisdom(m_wisdom.c_str());
  }
  NoWisdom(const NoWisdom&) = delete;
  NoWisdom& operator=(const NoWisdom&) = delete;

 private:
  static void append(char c, void* to) noexcept {
    auto& wisdom = *static_cast<NoWisdom*>(to);
    try {
      if (!wisdom.m_out_of_memory) wisdom.m_wisdom += c;
    } catch (...) {
      wisdom.m_out_of_memory = true;  // an exception must not pass through C
    }
  }

  std::string m_wisdom;
  bool m_out_of_memory = false;
};

}  // namespace detail

/// The transforms of real signals of one length, and the inverse transforms, unscaled and out of place, for arrays in
/// Buffers. A spectrum has only its first length / 2 + 1 bins; the other bins are conjugates of these.
///
/// Plans are made with FFTW_ESTIMATE and without wisdom: measurements, by nprf or by other code in the process, would
/// change the bits of the result from run to run. The wisdom of other code is preserved. A plan is immutable, and
/// several threads may use it at the same time.
template <Real T>
class RealPlan {
 public:
  using Complex = std::complex<T>;

  /// Locks planner_mutex(). Throws InvalidArgument unless 1 <= length < 2^31, and BackendError if FFTW returns no plan.
  explicit RealPlan(Index length) : m_length(length) {
    require(length >= 1 && length <= std::numeric_limits<int>::max(), "length: expected 1 to 2^31 - 1, got ", length);
    Buffer<T> signal(length);
    Buffer<Complex> spectrum(bins());
    {
      const std::scoped_lock lock(planner_mutex());
      const detail::NoWisdom<T> estimate;
      m_forward.reset(Api::plan(static_cast<int>(length), signal.data(), raw(spectrum.data())));
      m_backward.reset(Api::plan(static_cast<int>(length), raw(spectrum.data()), signal.data()));
    }
    if (!m_forward || !m_backward)
      throw BackendError(nprf::detail::sentence("FFTW has no plan for a real transform of length ", length));
  }

  Index length() const { return m_length; }
  Index bins() const { return m_length / 2 + 1; }

  /// spectrum[k] = sum_j signal[j] e^(-2 pi i jk / length) for k < bins()
  void forward(T* signal, Complex* spectrum) const { Api::execute(m_forward.get(), signal, raw(spectrum)); }

  /// The length times the inverse of forward(). Overwrites the spectrum.
  void backward(Complex* spectrum, T* signal) const { Api::execute(m_backward.get(), raw(spectrum), signal); }

  /// The plan of a length, shared by all callers in the process.
  static std::shared_ptr<const RealPlan> shared(Index length) {
    constexpr std::size_t most_plans = 1024;  // bounds the memory of programs that use many lengths
    planner_mutex();                          // constructs the mutex before the plans, so that it outlives them
    static std::mutex mutex;
    static std::map<Index, std::shared_ptr<const RealPlan>> plans;

    const std::scoped_lock lock(mutex);
    if (const auto found = plans.find(length); found != plans.end()) return found->second;
    auto plan = std::make_shared<const RealPlan>(length);
    if (plans.size() == most_plans) plans.clear();
    plans.emplace(length, plan);
    return plan;
  }

 private:
  using Api = detail::Fftw<T>;
  struct Destroy {
    void operator()(typename Api::Plan plan) const {
      const std::scoped_lock lock(planner_mutex());
      Api::destroy(plan);
    }
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<typename Api::Plan>, Destroy>;

  static typename Api::Complex* raw(Complex* z) { return reinterpret_cast<typename Api::Complex*>(z); }

  Index m_length;
  Handle m_forward, m_backward;
};

}  // namespace nprf::fft

#endif  // NPRF_USE_FFTW
