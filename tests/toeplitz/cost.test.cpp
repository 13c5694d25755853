// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/cost.hpp"

#include <vector>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_cost {

using toeplitz::worthwhile_threads;

TEST_CASE("transforms and sums of tails cost fewer multiply-adds with NEON than with AVX, by their registers",
          "[toeplitz]") {
  using toeplitz::CostFactors, toeplitz::cost_factors_of;
  const auto all = [](const CostFactors& x) {
    return std::vector{x.fft_level, x.fft_point, x.causal_operation, x.tail_state};
  };
  const std::vector<double> avx512 = all(cost_factors_of(64, true)), avx2 = all(cost_factors_of(32, true)),
                            sse2 = all(cost_factors_of(16, false)), neon = all(cost_factors_of(16, true));
  CHECK(avx512 == std::vector<double>{3, 25, 5, 2});
  CHECK(avx2 == avx512);
  CHECK(sse2 == avx512);
  for (std::size_t k = 0; k < neon.size(); ++k) {
    CHECK(neon[k] < avx512[k]);
    CHECK(neon[k] > avx512[k] / 2);
  }
#if defined(__aarch64__)
  CHECK(all(toeplitz::cost_factors) == neon);
#elif defined(__x86_64__)
  CHECK(all(toeplitz::cost_factors) == avx512);
#endif
}

TEST_CASE("the number of threads grows with the cost of a product, from one to the number that is set", "[toeplitz]") {
  struct Kept {
    ~Kept() { set_num_threads(before); }
    const Index before = num_threads();
  } const kept;
  for (const Index most : {1, 2, 7}) {
    set_num_threads(most);
    CHECK(worthwhile_threads(0) == 1);
    CHECK(worthwhile_threads(1e15) == most);
    Index before = 1;
    for (double operations = 1; operations < 1e12; operations *= 1.5) {
      const Index threads = worthwhile_threads(operations);
      CHECK((before <= threads && threads <= most));
      before = threads;
    }
  }
}

}  // namespace nprf::test::toeplitz_cost
