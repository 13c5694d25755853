// SPDX-License-Identifier: MIT
#include "nprf/fft/fftw.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <memory>
#include <mutex>
#include <numbers>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::fft_fftw {

namespace {

template <class T>
using Complexes = std::vector<std::complex<T>>;

// a signal without symmetries, the same on all platforms
template <class T>
std::vector<T> signal(Index n) {
  std::vector<T> x;
  for (Index j = 0; j < n; ++j) {
    const double t = static_cast<double>(j);
    x.push_back(static_cast<T>(std::cos(1.7 * t * t + 0.3)));
  }
  return x;
}

// the bins k <= n / 2 of sum_j in[j] e^(-2 pi i jk / n), in long double
template <class T>
Complexes<double> naive_dft(const std::vector<T>& in) {
  const std::size_t n = in.size();
  Complexes<double> out(n / 2 + 1);
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::complex<long double> sum = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const long double turns = static_cast<long double>(j * k % n) / static_cast<long double>(n);
      sum += static_cast<long double>(in[j]) * std::polar(1.0L, -2 * std::numbers::pi_v<long double> * turns);
    }
    out[k] = std::complex<double>(sum);
  }
  return out;
}

// |a - b| / |b| in the 2-norm
template <class X, class Y>
double relative_error(const std::vector<X>& a, const std::vector<Y>& b) {
  double error = 0, magnitude = 0;
  for (std::size_t j = 0; j < b.size(); ++j) {
    error += std::norm(Y(a[j]) - b[j]);
    magnitude += std::norm(b[j]);
  }
  return std::sqrt(error / magnitude);
}

// The rounding error of a transform grows with the logarithm of its length; FFTW transforms lengths with large prime
// factors by longer transforms.
template <class T>
double tolerance(Index n) {
  return 2 * static_cast<double>(std::numeric_limits<T>::epsilon()) * (1 + std::log2(static_cast<double>(n)));
}

template <class T>
Complexes<T> transform(const fft::RealPlan<T>& plan, const std::vector<T>& x) {
  Buffer<T> in(plan.length());
  Buffer<std::complex<T>> out(plan.bins());
  std::copy(x.begin(), x.end(), in.data());
  plan.forward(in.data(), out.data());
  return {out.data(), out.data() + plan.bins()};
}

template <class T>
std::vector<T> inverse(const fft::RealPlan<T>& plan, const Complexes<T>& bins) {
  Buffer<std::complex<T>> in(plan.bins());
  Buffer<T> out(plan.length());
  std::copy(bins.begin(), bins.end(), in.data());
  plan.backward(in.data(), out.data());
  return {out.data(), out.data() + plan.length()};
}

// whether FFTW returns a plan for these flags to other code in the process, of the transform or of its inverse
template <class T>
bool planned(Index n, bool forward, unsigned flags) {
  Buffer<T> x(n);
  Buffer<std::complex<T>> bins(n / 2 + 1);
  const int length = static_cast<int>(n);
  const auto returns = [](auto plan, auto destroy) {
    if (plan) destroy(plan);
    return plan != nullptr;
  };
  const std::scoped_lock lock(fft::planner_mutex());
  if constexpr (std::is_same_v<T, float>) {
    auto* z = reinterpret_cast<fftwf_complex*>(bins.data());
    return returns(
        forward ? fftwf_plan_dft_r2c_1d(length, x.data(), z, flags) : fftwf_plan_dft_c2r_1d(length, z, x.data(), flags),
        fftwf_destroy_plan);
  } else {
    auto* z = reinterpret_cast<fftw_complex*>(bins.data());
    return returns(
        forward ? fftw_plan_dft_r2c_1d(length, x.data(), z, flags) : fftw_plan_dft_c2r_1d(length, z, x.data(), flags),
        fftw_destroy_plan);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("FFTW plans compute the transform of a real signal, and back the length times the signal", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {1, 2, 3, 5, 7, 8, 12, 97, 128, 210, 1001, 1024}) {
    const fft::RealPlan<T> plan(n);
    const std::vector<T> x = signal<T>(n);
    std::vector<double> scaled(x.begin(), x.end());
    for (double& each : scaled) each *= static_cast<double>(n);
    INFO("length " << n);
    CHECK((plan.length() == n && plan.bins() == n / 2 + 1));
    CHECK(relative_error(transform(plan, x), naive_dft(x)) <= tolerance<T>(n));
    CHECK(relative_error(inverse(plan, transform(plan, x)), scaled) <= 2 * tolerance<T>(n));
  }
}

TEMPLATE_TEST_CASE("an FFTW plan rejects lengths below 1 and above 2^31 - 1", "[fft]", NPRF_TEST_SCALARS) {
  using Plan = fft::RealPlan<TestType>;
  check_invalid([] { Plan plan(0); }, {"length: expected 1 to 2^31 - 1", "got 0"});
  check_invalid([] { Plan plan(-4); }, {"length", "got -4"});
  check_invalid([] { Plan plan(Index{1} << 31); }, {"length", "got 2147483648"});
  check_invalid([] { Plan::shared(0); }, {"length", "got 0"});
}

TEMPLATE_TEST_CASE("callers of one length share one FFTW plan", "[fft]", NPRF_TEST_SCALARS) {
  using Plan = fft::RealPlan<TestType>;
  const std::shared_ptr<const Plan> plan = Plan::shared(30);
  CHECK(plan->length() == 30);
  CHECK(Plan::shared(30) == plan);
  CHECK(Plan::shared(32) != plan);
  CHECK(Plan::shared(32)->length() == 32);
}

TEMPLATE_TEST_CASE("an FFTW plan in use stays valid when other lengths replace it, and at most 1024 are kept", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::RealPlan<T>;
  const std::shared_ptr<const Plan> kept = Plan::shared(60), longer = Plan::shared(1050);
  std::vector<std::weak_ptr<const Plan>> plans;
  bool right_length = true;
  for (Index n = 1; n < 1030; ++n) {
    const std::shared_ptr<const Plan> plan = Plan::shared(n);
    right_length = right_length && plan->length() == n;
    plans.push_back(plan);
  }
  CHECK(right_length);
  CHECK(std::count_if(plans.begin(), plans.end(), [](const auto& plan) { return !plan.expired(); }) <= 1024);
  CHECK_FALSE(plans.back().expired());

  const std::vector<T> x = signal<T>(60);
  CHECK(relative_error(transform(*kept, x), naive_dft(x)) <= tolerance<T>(60));
  // a new plan of the same length gives the same bits
  CHECK(Plan::shared(60) != kept);
  for (const auto& plan : {kept, longer}) {
    const Complexes<T> bins = transform(*plan, signal<T>(plan->length()));
    const std::shared_ptr<const Plan> again = Plan::shared(plan->length());
    CHECK((transform(*again, signal<T>(plan->length())) == bins));
    CHECK((inverse(*again, bins) == inverse(*plan, bins)));
  }
}

TEMPLATE_TEST_CASE("wisdom of other code changes no bit of a transform and is preserved", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::RealPlan<T>;
  for (const Index n : {64, 96, 105, 360}) {
    const std::vector<T> x = signal<T>(n);
    const Complexes<T> bins = transform(Plan(n), x);
    const std::vector<T> back = inverse(Plan(n), bins);
    for (const bool forward : {true, false}) CHECK(planned<T>(n, forward, FFTW_MEASURE));
    INFO("length " << n);
    CHECK((transform(Plan(n), x) == bins));
    CHECK((inverse(Plan(n), bins) == back));
    for (const bool forward : {true, false}) CHECK(planned<T>(n, forward, FFTW_MEASURE | FFTW_WISDOM_ONLY));
  }
}

TEMPLATE_TEST_CASE("creating an FFTW plan adds no wisdom", "[fft]", NPRF_TEST_SCALARS) {
  const fft::RealPlan<TestType> plan(440);
  CHECK_FALSE(planned<TestType>(440, true, FFTW_ESTIMATE | FFTW_WISDOM_ONLY));
}

TEMPLATE_TEST_CASE("eight threads create and run FFTW plans at the same time", "[fft][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::RealPlan<T>;
  const std::vector<T> common = signal<T>(96);
  const Complexes<T> alone = transform(*Plan::shared(96), common);
  std::vector<double> worst(8, 0);  // the largest ratio of error and tolerance in each thread
  std::vector<char> same_bits(8, true);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (Index step = 0; step < 100; ++step) {
        const Index n = 100 + (7 * step + 13 * static_cast<Index>(t)) % 90;  // 90 lengths
        std::vector<T> impulse(static_cast<std::size_t>(n));
        impulse[1] = 1;
        Complexes<double> wave;
        for (Index k = 0; k <= n / 2; ++k)
          wave.push_back(std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n)));
        const double error = relative_error(transform(*Plan::shared(n), impulse), wave);
        worst[t] = std::max(worst[t], error / tolerance<T>(n));
        same_bits[t] = same_bits[t] && transform(*Plan::shared(96), common) == alone;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < 8; ++t) {
    CHECK(worst[t] <= 1);
    CHECK(same_bits[t]);
  }
}

TEST_CASE("while another caller holds the planner's mutex, existing FFTW plans can be looked up and run", "[fft]") {
  using Plan = fft::RealPlan<double>;
  const std::shared_ptr<const Plan> plan = Plan::shared(40);
  const std::vector<double> x = signal<double>(40);
  const std::scoped_lock lock(fft::planner_mutex());
  CHECK(relative_error(transform(*plan, x), naive_dft(x)) <= tolerance<double>(40));
  CHECK(Plan::shared(40) == plan);
}

#endif  // NPRF_USE_FFTW

}  // namespace nprf::test::fft_fftw
