// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/convolution_error.hpp"

#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_fft_convolution_error {

using toeplitz::convolution_error;
using toeplitz::fft_error_per_value;
using toeplitz::Norms;
using toeplitz::NormSums;

namespace {

NormSums sums_of(const Vector<double>& x) {
  NormSums sums;
  for (const double entry : x) sums.add(entry);
  return sums;
}

}  // namespace

TEST_CASE("norms agree with their definition, for signs, and for signals added with a factor", "[toeplitz]") {
  const Vector<double> x = normal_vector<double>(50, 1), y = normal_vector<double>(30, 2);
  Vector<double> both(80);
  both << x, 0.25 * y;
  NormSums sums = sums_of(x);
  sums.add(sums_of(y), 0.25);
  const Norms norms = sums.norms();
  const double growth = 80 * epsilon<double>;
  CHECK(std::abs(norms.one - both.cwiseAbs().sum()) <= growth * norms.one);
  CHECK(std::abs(norms.two - both.norm()) <= growth * norms.two);
  CHECK(norms.max == both.cwiseAbs().maxCoeff());
}

TEST_CASE("signals whose squares underflow or overflow have norms", "[toeplitz]") {
  for (const double scale : {1e-170, 1e170}) {
    NormSums norms, far;
    for (const double c : {1.0, 0.5, 0.25}) norms.add(c), far.add(c * scale);
    CHECK(std::abs(norms.norms().two - std::sqrt(1.3125)) < 1e-15);
    CHECK(far.norms().two >= std::sqrt(1.3125) * scale);
    CHECK(far.norms().two <= 1.5 * scale);
  }
}

TEST_CASE("the error of a convolution contains its norms", "[toeplitz]") {
  const Index n = 60;
  for (const double spread : {0.0, 2.0, 5.0})
    for (const bool causal : {false, true}) {
      const Vector<double> x = (spread * normal_vector<double>(n, 3)).array().exp();
      Vector<double> c = (spread * normal_vector<double>(2 * n - 1, 4)).array().exp(), y(n);
      if (causal) c.tail(n - 1).setZero();
      for (Index i = 0; i < n; ++i) y[i] = c.segment(n - 1 - i, n).dot(x);
      const Norms of_c = sums_of(c).norms(), of_x = sums_of(x).norms();
      INFO("spread " << spread << (causal ? ", causal" : ""));
      for (const double per_value : {0.0, 0.1, 100.0}) {
        const double error = convolution_error(of_c, of_x, per_value);
        CHECK(error >= per_value * (c.norm() * x.norm() + y.norm()) + 1.5 * y.maxCoeff());
        CHECK(convolution_error(of_x, of_c, per_value) == error);
      }
    }
}

TEST_CASE("the error of one weight and n equal values", "[toeplitz]") {
  const double n = 100, N = 256;
  // sqrt(log2 N / N) = sqrt(8 / 256)
  CHECK(std::abs(fft_error_per_value(N) - 0.17677669529663687) < 1e-16);
  // |c|_2 |x|_2 = |T(c) x|_2 = 10, |T(c) x|_max = 1
  const double expected = 20 * 0.17677669529663687 + 1.5;
  CHECK(std::abs(convolution_error({1, 1, 1}, {n, 10, 1}, fft_error_per_value(N)) - expected) < 1e-14);
}

TEST_CASE("columns that share a transform have errors of both", "[toeplitz]") {
  CHECK(toeplitz::shared_transform_error(3, 4) == 5);
  CHECK(toeplitz::shared_transform_error(3, 0) == 3);
}

}  // namespace nprf::test::toeplitz_fft_convolution_error
