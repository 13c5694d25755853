// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/error_bound.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/error_bound_case.hpp"

namespace nprf::test::toeplitz_fft_backward_error_bound {

TEMPLATE_TEST_CASE("errors of gradients beyond direct rounding are at most 1.25 times their bound", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 230, n_k = 250;
  std::vector<Engine> noisy = fft_engines();
  std::erase(noisy, Engine::block_causal);
  std::vector<std::vector<double>> all(noisy.size());
  for (const ErrorBoundCase<T>& x : error_bound_cases<T>(n_q, n_k, 5, 4))
    for (const HostileBias& bias : hostile_biases()) {
      const LagWeights<T> c = bias.weights<T>(n_q, n_k, n_k);
      const ExactGradients<T> exact(c, x);
      for (std::size_t e = 0; e < noisy.size(); ++e) {
        const BoundRatios found = exact.errors(noisy[e]);
        INFO(name(noisy[e]) << ", " << x.name << ", " << bias.name << ": " << found.where);
        CHECK(found.most <= 1.25);
        all[e].insert(all[e].end(), found.all.begin(), found.all.end());
      }
    }
  for (std::vector<double>& each : all) {
    const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
    std::ranges::nth_element(each, middle);
    CHECK(*middle > 0.003);
  }
}

}  // namespace nprf::test::toeplitz_fft_backward_error_bound
