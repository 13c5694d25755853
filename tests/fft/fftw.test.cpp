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
Complexes<T> signal(Index n) {
  Complexes<T> z;
  for (Index j = 0; j < n; ++j) {
    const double t = static_cast<double>(j);
    z.emplace_back(static_cast<T>(std::cos(1.7 * t * t + 0.3)), static_cast<T>(std::sin(2.9 * t + 0.1 * t * t)));
  }
  return z;
}

// out[k] = sum_j in[j] e^(sign 2 pi i jk / n), in long double
template <class T>
Complexes<double> naive_dft(const Complexes<T>& in, int sign) {
  const std::size_t n = in.size();
  Complexes<double> out(n);
  for (std::size_t k = 0; k < n; ++k) {
    std::complex<long double> sum = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const long double turns = static_cast<long double>(j * k % n) / static_cast<long double>(n);
      sum += std::complex<long double>(in[j]) * std::polar(1.0L, sign * 2 * std::numbers::pi_v<long double> * turns);
    }
    out[k] = std::complex<double>(sum);
  }
  return out;
}

// |a - b| / |b| in the 2-norm
template <class T>
double relative_error(const Complexes<T>& a, const Complexes<double>& b) {
  double error = 0, magnitude = 0;
  for (std::size_t j = 0; j < b.size(); ++j) {
    error += std::norm(std::complex<double>(a[j]) - b[j]);
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
Complexes<T> transform(const fft::ComplexPlan<T>& plan, const Complexes<T>& z, int sign) {
  Buffer<std::complex<T>> in(plan.length()), out(plan.length());
  std::copy(z.begin(), z.end(), in.data());
  sign < 0 ? plan.forward(in.data(), out.data()) : plan.backward(in.data(), out.data());
  return {out.data(), out.data() + plan.length()};
}

// whether FFTW returns a plan for these flags to other code in the process
template <class T>
bool planned(Index n, int sign, unsigned flags) {
  Buffer<std::complex<T>> in(n), out(n);
  const std::scoped_lock lock(fft::planner_mutex());
  if constexpr (std::is_same_v<T, float>) {
    const fftwf_plan plan = fftwf_plan_dft_1d(static_cast<int>(n), reinterpret_cast<fftwf_complex*>(in.data()),
                                              reinterpret_cast<fftwf_complex*>(out.data()), sign, flags);
    if (plan) fftwf_destroy_plan(plan);
    return plan != nullptr;
  } else {
    const fftw_plan plan = fftw_plan_dft_1d(static_cast<int>(n), reinterpret_cast<fftw_complex*>(in.data()),
                                            reinterpret_cast<fftw_complex*>(out.data()), sign, flags);
    if (plan) fftw_destroy_plan(plan);
    return plan != nullptr;
  }
}

}  // namespace

TEMPLATE_TEST_CASE("FFTW plans compute the forward and the backward transform", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {1, 2, 3, 5, 7, 8, 12, 97, 128, 210}) {
    const fft::ComplexPlan<T> plan(n);
    const Complexes<T> z = signal<T>(n);
    INFO("length " << n);
    CHECK(plan.length() == n);
    CHECK(relative_error(transform(plan, z, -1), naive_dft(z, -1)) <= tolerance<T>(n));
    CHECK(relative_error(transform(plan, z, +1), naive_dft(z, +1)) <= tolerance<T>(n));
  }
}

TEMPLATE_TEST_CASE("FFTW's forward and backward transforms give the length times the signal", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {1, 2, 3, 8, 97, 210, 1024, 1001}) {
    const fft::ComplexPlan<T> plan(n);
    const Complexes<T> z = signal<T>(n);
    Complexes<double> scaled(z.begin(), z.end());
    for (std::complex<double>& x : scaled) x *= static_cast<double>(n);
    INFO("length " << n);
    CHECK(relative_error(transform(plan, transform(plan, z, -1), +1), scaled) <= 2 * tolerance<T>(n));
  }
}

TEMPLATE_TEST_CASE("an FFTW plan rejects lengths below 1 and above 2^31 - 1", "[fft]", NPRF_TEST_SCALARS) {
  using Plan = fft::ComplexPlan<TestType>;
  check_invalid([] { Plan plan(0); }, {"length: expected 1 to 2^31 - 1", "got 0"});
  check_invalid([] { Plan plan(-4); }, {"length", "got -4"});
  check_invalid([] { Plan plan(Index{1} << 31); }, {"length", "got 2147483648"});
  check_invalid([] { Plan::shared(0); }, {"length", "got 0"});
}

TEMPLATE_TEST_CASE("callers of one length share one FFTW plan", "[fft]", NPRF_TEST_SCALARS) {
  using Plan = fft::ComplexPlan<TestType>;
  const std::shared_ptr<const Plan> plan = Plan::shared(30);
  CHECK(plan->length() == 30);
  CHECK(Plan::shared(30) == plan);
  CHECK(Plan::shared(32) != plan);
  CHECK(Plan::shared(32)->length() == 32);
}

TEMPLATE_TEST_CASE("an FFTW plan in use stays valid when other lengths replace it, and at most 1024 are kept", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::ComplexPlan<T>;
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

  const Complexes<T> z = signal<T>(60);
  CHECK(relative_error(transform(*kept, z, -1), naive_dft(z, -1)) <= tolerance<T>(60));
  // a new plan of the same length gives the same bits
  CHECK(Plan::shared(60) != kept);
  for (const auto& plan : {kept, longer}) {
    const Complexes<T> x = signal<T>(plan->length());
    for (const int sign : {-1, +1})
      CHECK((transform(*Plan::shared(plan->length()), x, sign) == transform(*plan, x, sign)));
  }
}

TEMPLATE_TEST_CASE("wisdom of other code changes no bit of a transform and is preserved", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::ComplexPlan<T>;
  for (const Index n : {64, 96, 105, 360}) {
    const Complexes<T> z = signal<T>(n);
    const Complexes<T> forward = transform(Plan(n), z, -1), backward = transform(Plan(n), z, +1);
    for (const int sign : {FFTW_FORWARD, FFTW_BACKWARD}) CHECK(planned<T>(n, sign, FFTW_MEASURE));
    INFO("length " << n);
    CHECK((transform(Plan(n), z, -1) == forward));
    CHECK((transform(Plan(n), z, +1) == backward));
    for (const int sign : {FFTW_FORWARD, FFTW_BACKWARD}) CHECK(planned<T>(n, sign, FFTW_MEASURE | FFTW_WISDOM_ONLY));
  }
}

TEMPLATE_TEST_CASE("creating an FFTW plan adds no wisdom", "[fft]", NPRF_TEST_SCALARS) {
  const fft::ComplexPlan<TestType> plan(440);
  CHECK_FALSE(planned<TestType>(440, FFTW_FORWARD, FFTW_ESTIMATE | FFTW_WISDOM_ONLY));
}

TEMPLATE_TEST_CASE("eight threads create and run FFTW plans at the same time", "[fft][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Plan = fft::ComplexPlan<T>;
  const Complexes<T> common = signal<T>(96);
  const Complexes<T> alone = transform(*Plan::shared(96), common, -1);
  std::vector<double> worst(8, 0);  // the largest ratio of error and tolerance in each thread
  std::vector<char> same_bits(8, true);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (Index step = 0; step < 100; ++step) {
        const Index n = 100 + (7 * step + 13 * static_cast<Index>(t)) % 90;  // 90 lengths
        Complexes<T> impulse(static_cast<std::size_t>(n));
        impulse[1] = 1;
        Complexes<double> wave;
        for (Index k = 0; k < n; ++k)
          wave.push_back(std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n)));
        const double error = relative_error(transform(*Plan::shared(n), impulse, -1), wave);
        worst[t] = std::max(worst[t], error / tolerance<T>(n));
        same_bits[t] = same_bits[t] && transform(*Plan::shared(96), common, -1) == alone;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < 8; ++t) {
    CHECK(worst[t] <= 1);
    CHECK(same_bits[t]);
  }
}

TEMPLATE_TEST_CASE("eight threads look up FFTW plans of many lengths at the same time", "[fft][threads]",
                   NPRF_TEST_SCALARS) {
  using Plan = fft::ComplexPlan<TestType>;
  std::vector<char> right_length(8, true);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (Index step = 0; step < 2000; ++step) {
        const Index n = 1 + (step * static_cast<Index>(2 * t + 1)) % 67;  // 67 lengths
        right_length[t] = right_length[t] && Plan::shared(n)->length() == n;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::count(right_length.begin(), right_length.end(), true) == 8);
}

TEST_CASE("while another caller holds the planner's mutex, existing FFTW plans can be looked up and run", "[fft]") {
  using Plan = fft::ComplexPlan<double>;
  const std::shared_ptr<const Plan> plan = Plan::shared(40);
  const Complexes<double> z = signal<double>(40);
  const std::scoped_lock lock(fft::planner_mutex());
  CHECK(relative_error(transform(*plan, z, -1), naive_dft(z, -1)) <= tolerance<double>(40));
  CHECK(Plan::shared(40) == plan);
}

#endif  // NPRF_USE_FFTW

}  // namespace nprf::test::fft_fftw
