// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "toeplitz/block_causal/block_causal_case.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/mixed_scales.hpp"

namespace nprf::test::toeplitz_block_causal_backward {

namespace {

template <class T>
using Case = BlockCausalCase<T>;

template <class T>
void check(const Case<T>& x) {
  INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols() << ", last lag "
              << x.c.support().last);
  toeplitz::Gradients<T> d = x.gradients();
  // lags without a weight have no gradient here, but in the plain loop
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
  check(Case<T>(1500, 1500, 32, 64));  // larger diagonal blocks
  for (const Index p : {W, W + 1, 2 * W - 1})
    for (const Index r : {Index{1}, Index{2}, W + 1, 2 * W + 3}) check(Case<T>(200, 300, r, p));
}

TEMPLATE_TEST_CASE("block-causal gradients: the last weight may be of any lag", "[toeplitz]", NPRF_TEST_SCALARS) {
  for (const Index last : {-130, -128, -127, -1, 1, 5, 127, 128, 500, 1199})
    check(Case<TestType>(300, 300, 2, 3, last));
}

TEMPLATE_TEST_CASE("block-causal gradients: the sums of sizes are right", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto make = [](LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
    return toeplitz::BlockCausalEngine<T>(lags, span, team);
  };
  check_sizes<T>(Engine::block_causal, make, 140, 150);
  Workspace workspace;
  for (const Index last : {-200, -128, 0, 5, 300}) {
    InSlots<T> x(500, 600, random_slots(500, 0.7, 1), random_slots(600, 0.8, 2), 3, 2);
    for (Index lag = last + 1; lag < 600; ++lag) x.c.values[lag + 499] = 0;
    check_sizes(Engine::block_causal, x, make, Team(workspace));
  }
}

TEMPLATE_TEST_CASE("block-causal gradients: small columns beside large ones keep their digits", "[toeplitz][long]",
                   NPRF_TEST_SCALARS) {
  check_mixed_scales<TestType>(Engine::block_causal, 180, 190, 0);
}

TEMPLATE_TEST_CASE("block-causal: gradients and sums of sizes with key log-scales are right", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 1100;
  Case<T> plain(n, n, 3, 4);
  plain.U.rightCols(1).setOnes();
  const Vector<T> rows = sizes_of(plain.G, T(1));
  for (Matrix<T>* X : {&plain.A, &plain.B, &plain.G}) X->col(1) *= T(1e-12);  // beside columns of size 1
  // the bound of an FFT (fft_error_bound) and the largest row of each column
  const double bound = 2 * fft_margin * std::sqrt(2.0) * epsilon<T> * std::sqrt(std::log2(2.0 * n));
  for_each_spread(n, [&](const char* name, const Vector<double>& e) {
    INFO(name);
    Case<T> x = plain;
    x.e = e;
    // plain sums, with w_ij = e^(e_j - M_i)
    SizedGradients<double> sums(x.shape(), 2 * n - 1), sizes(x.shape(), 2 * n - 1);
    for (SizedGradients<double>* to : {&sums, &sizes}) {
      toeplitz::GradientRefs<double>{to->d.dA, to->d.dB, to->d.dU, to->d.dc}.set_zero();
      to->keys.setZero(), to->lags.setZero();
    }
    double largest = -std::numeric_limits<double>::infinity();
    const Matrix<double> A = x.A.template cast<double>(), B = x.B.template cast<double>(),
                         U = x.U.template cast<double>(), G = x.G.template cast<double>();
    const auto add = [n](SizedGradients<double>& to, Index i, Index j, double w, double c, double row, const auto& a,
                         const auto& b, const auto& u, const auto& g) {
      const double s = w * a.dot(b), t = w * g.dot(u);
      to.d.dA.row(i) += c * t * b;
      to.d.dB.row(j) += c * t * a;
      to.d.dU.row(j) += c * s * g;
      to.d.dc[j - i + n - 1] += s * g.dot(u);
      to.keys[j] += c * s * row;
      to.lags[j - i + n - 1] += s * row;
    };
    for (Index i = 0; i < n; ++i) {
      largest = std::max(largest, e[i]);
      for (Index j = 0; j <= i; ++j) {
        const double w = std::exp(e[j] - largest), c = static_cast<double>(x.c[j - i]);
        const double row = static_cast<double>(rows[i]);
        add(sums, i, j, w, c, row, A.row(i), B.row(j), U.row(j), G.row(i));
        add(sizes, i, j, w, std::abs(c), row, A.row(i).cwiseAbs(), B.row(j).cwiseAbs(), U.row(j).cwiseAbs(),
            G.row(i).cwiseAbs());
      }
    }
    const auto check = [&](const toeplitz::Gradients<T>& got) {
      const auto right = [&](const Matrix<T>& of, const Matrix<double>& sum, const Matrix<double>& size) {
        for (Index k = 0; k < of.cols(); ++k) {
          INFO("column " << k);
          CHECK(worst_ratio(of.col(k), sum.col(k), bound * size.col(k).maxCoeff()) <= 1);
        }
      };
      right(got.dA, sums.d.dA, sizes.d.dA);
      right(got.dB, sums.d.dB, sizes.d.dB);
      right(got.dU, sums.d.dU, sizes.d.dU);
      CHECK(worst_ratio(got.dc, sums.d.dc, bound * sizes.d.dc.maxCoeff()) <= 1);
    };
    check(x.gradients());
    const SizedGradients<T> got = x.gradients(rows);
    check(got.d);
    CHECK(worst_ratio(got.keys, sums.keys, bound * sizes.keys.maxCoeff()) <= 1);
    CHECK(worst_ratio(got.lags, sums.lags, bound * sizes.lags.maxCoeff()) <= 1);
  });
}

}  // namespace nprf::test::toeplitz_block_causal_backward
