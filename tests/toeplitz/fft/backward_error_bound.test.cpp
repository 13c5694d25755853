// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/backward_error_bound.hpp"

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
  std::vector<Engine> noisy = engines();
  std::erase_if(noisy, [](Engine engine) { return !is_fft(engine) || engine == Engine::block_causal; });
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

TEMPLATE_TEST_CASE("two columns that share a signal share their error bound", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 30, n_k = 40, N = 80;
  Workspace workspace;
  toeplitz::NormSums c;
  for (Index lag = 1 - n_q; lag < n_k; ++lag) c.add(1);
  for (const ErrorBoundCase<T>& x : error_bound_cases<T>(n_q, n_k, 5, 4)) {
    const MatrixView<T> A = x.A, B = x.B, U = x.U;
    const Vector<T> values = U.rowwise().norm(), lags = Vector<T>::Zero(n_q + n_k - 1);  // no images
    const auto bounds = [&](Index columns) {
      Vector<double> all(2 * n_k + 2 * lags.size());
      double *keys = all.data(), *of_lags = keys + 2 * n_k;
      toeplitz::fft_gradient_error_bounds<T>(
          c, N, columns, {A, B, U, Slots{n_q}, Slots{n_k}}, {x.sizes.data(), values.data(), lags.data()},
          {keys, keys + n_k, of_lags, of_lags + lags.size(), lags.size()}, Team(workspace));
      return all;
    };
    const Vector<double> one = bounds(1), two = bounds(2);
    const auto ratio = [&](Index at) { return two[at] / one[at] / std::sqrt(2.0); };
    const double growth = 100 * epsilon<double>;
    for (Index j = 0; j < 2 * n_k; ++j) CHECK(std::abs(ratio(j) - 1) <= growth);
    // the errors of dc are those of all columns, filled up to pairs, of which the last column makes one with the sizes
    const double p = static_cast<double>(U.cols()), filled_up = static_cast<double>((U.cols() / 2 + 1) * 2);
    for (Index l = 0; l < lags.size(); ++l) {
      CHECK(std::abs(two[2 * n_k + l] / one[2 * n_k + l] / std::sqrt(filled_up / p) - 1) <= growth);
      CHECK(std::abs(ratio(2 * n_k + lags.size() + l) - 1) <= growth);
    }
  }
}

}  // namespace nprf::test::toeplitz_fft_backward_error_bound
