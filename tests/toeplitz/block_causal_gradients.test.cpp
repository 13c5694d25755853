// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "toeplitz/block_causal_case.hpp"
#include "toeplitz/gradient_error.hpp"

namespace nprf::test::toeplitz_block_causal_gradients {

namespace {

template <class T>
using Case = BlockCausalCase<T>;

template <class T>
void check(const Case<T>& x) {
  INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols() << ", last lag "
              << x.c.support().last);
  toeplitz::Gradients<T> d = x.gradients();
  // lags without a weight have no gradient here, where the twin has one
  for (Index lag = x.c.support().last + 1; lag < x.B.rows(); ++lag) {
    T& dc = d.dc[lag + x.A.rows() - 1];
    CHECK(dc == 0);
    for (Index i = std::max<Index>(-lag, 0); i < std::min(x.A.rows(), x.B.rows() - lag); ++i)
      dc += x.A.row(i).dot(x.B.row(i + lag)) * x.G.row(i).dot(x.U.row(i + lag));
  }
  CHECK(gradients_error(Engine::block_causal, x.c, x.A, x.B, x.U, x.G, d) <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("the block-causal engine's gradients are the sums that define them", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (const Index n : {1, 2, 127, 128, 129, 257, 1000, 1025, 1300}) check(Case<T>(n, n, 3, 2));
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 300}, {300, 1}, {300, 500}, {500, 300}})
    check(Case<T>(n_q, n_k, 2, 3));
  for (const Index p : {W, W + 1, 2 * W - 1})
    for (const Index r : {Index{1}, Index{2}, W + 1, 2 * W + 3}) check(Case<T>(200, 300, r, p));
}

TEMPLATE_TEST_CASE("block-causal gradients: the last weight may be of any lag", "[toeplitz]", NPRF_TEST_SCALARS) {
  for (const Index last : {-130, -128, -127, -1, 1, 5, 127, 128, 500, 1199})
    check(Case<TestType>(300, 300, 2, 3, last));
}

TEMPLATE_TEST_CASE("block-causal: gradients know exponents", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 1100;
  const Case<T> plain(n, n, 3, 4);
  // that of an FFT (fft_noise), for which a feature's partner may be 4 times as large, beside the largest of all rows
  const double noise = 2 * 4 * fft_margin * std::sqrt(2.0) * epsilon<T> * std::sqrt(std::log2(2.0 * n));
  for_each_spread(n, [&](const char* name, const Vector<double>& e) {
    INFO(name);
    Case<T> x = plain;
    x.e = e;
    const toeplitz::Gradients<T> got = x.gradients();
    // the obvious sums, with w_ij = e^(e_j - M_i)
    toeplitz::Gradients<double> sums(x.shape()), sizes(x.shape());
    double largest = -std::numeric_limits<double>::infinity();
    const Matrix<double> A = x.A.template cast<double>(), B = x.B.template cast<double>(),
                         U = x.U.template cast<double>(), G = x.G.template cast<double>();
    const auto add = [](toeplitz::Gradients<double>& d, Index i, Index j, Index n_q, double w, double c, const auto& a,
                        const auto& b, const auto& u, const auto& g) {
      const double s = w * a.dot(b), t = w * g.dot(u);
      d.dA.row(i) += c * t * b;
      d.dB.row(j) += c * t * a;
      d.dU.row(j) += c * s * g;
      d.dc[j - i + n_q - 1] += s * g.dot(u);
    };
    for (Index i = 0; i < n; ++i) {
      largest = std::max(largest, e[i]);
      for (Index j = 0; j <= i; ++j) {
        const double w = std::exp(e[j] - largest), c = static_cast<double>(x.c[j - i]);
        add(sums, i, j, n, w, c, A.row(i), B.row(j), U.row(j), G.row(i));
        add(sizes, i, j, n, w, std::abs(c), A.row(i).cwiseAbs(), B.row(j).cwiseAbs(), U.row(j).cwiseAbs(),
            G.row(i).cwiseAbs());
      }
    }
    CHECK(worst_ratio(got.dA, sums.dA, noise * sizes.dA.maxCoeff()) <= 1);
    CHECK(worst_ratio(got.dB, sums.dB, noise * sizes.dB.maxCoeff()) <= 1);
    CHECK(worst_ratio(got.dU, sums.dU, noise * sizes.dU.maxCoeff()) <= 1);
    CHECK(worst_ratio(got.dc, sums.dc, noise * sizes.dc.maxCoeff()) <= 1);
  });
}

}  // namespace nprf::test::toeplitz_block_causal_gradients
