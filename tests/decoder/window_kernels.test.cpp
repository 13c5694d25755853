// SPDX-License-Identifier: MIT
#include "nprf/decoder/window_kernels.hpp"

#include <cmath>

#include "nprf/position/relative.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_window_kernels {

TEMPLATE_TEST_CASE("window kernels: one key of a block gives its weights", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Kernels = WindowKernels<T>;
  using Lanes = fft::Lanes<T>;
  using Z = typename Kernels::Z;
  constexpr Index M = 16, limit = 120;
  const StepBias<T> bias(RelativePosition<T>(random_table<T>(limit, 3)).bias().view(), 0, 0, false);
  Kernels kernels(M, bias, limit);
  for (const Index tokens : {50, 400}) kernels.reserve(bias, tokens);
  for (Index age = M; age < limit; ++age) CHECK(bias(age) <= kernels.log_unit());
  const auto& tree = kernels.tree();
  Workspace scratch;
  Z* z = scratch.take<Z>(tree.length());
  for (Index k = 0; k < 3; ++k)
    for (Index key = 0; key < kernels.block(); ++key) {
      const auto x = [=](Index j) { return Lanes{} + T(j == key); };
      tree.values([&](Index j) { return Z{x(j), j < M ? x(j + tree.length()) : Lanes{}}; }, z);
      for (Index at = 0; at < tree.length(); at += 8) {
        Z eight[8];
        for (Index l = 0; l < 8; ++l) eight[l] = z[at + l];
        toeplitz::multiply(eight, kernels.spectrum(k) + 2 * at);
        for (Index l = 0; l < 8; ++l) z[at + l] = eight[l];
      }
      Vector<T> y(tree.length());
      tree.coefficients(
          scratch.take<Z>(tree.length()), [&](Index at, Index l) { return z[8 * at + l]; },
          [&](Index i, const Z& value) { y[i] = toeplitz::real_part(value, tree.twist() + 2 * i)[0]; });
      for (Index i = 0; i < M; ++i) {
        const Index age = (3 * k + 4) * M + i - key;
        const double c = age < limit ? std::exp(bias(age) - kernels.log_unit()) : 0.0;
        CHECK(std::abs(static_cast<double>(y[i]) - c) <= 30 * static_cast<double>(epsilon<T>));
      }
    }
}

TEST_CASE("window kernels: blocks cover the keys that have a weight", "[decoder]") {
  using T = float;
  const StepBias<T> bias(RelativePosition<T>(random_table<T>(200, 3)).bias().view(), 0, 0, false);
  const WindowKernels<T> kernels(16, bias, 150);
  CHECK(kernels.first_token({64, 16}) == 0);
  CHECK(kernels.blocks({64, 16}) == 1);  // 48 tokens
  CHECK(kernels.blocks({80, 16}) == 2);
  CHECK(kernels.first_token({320, 16}) == 171);
  CHECK(kernels.blocks({320, 16}) == 3);  // tokens 171 to 303
}

}  // namespace nprf::test::decoder_window_kernels
