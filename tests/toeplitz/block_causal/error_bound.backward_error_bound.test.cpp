// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/error_bound.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/error_bound_case.hpp"

namespace nprf::test::toeplitz_block_causal_backward_error_bound {

namespace {

// no log-scales, and log-scales of n keys over some range, in all orders
std::vector<Vector<double>> exponents(Index n, double range) {
  const Vector<double> rising = Vector<double>::LinSpaced(n, -range / 2, range / 2);
  Vector<double> walk = normal_vector<double>(n, 7);
  for (Index j = 1; j < n; ++j) walk[j] += walk[j - 1];
  return {{}, rising, rising.reverse(), range / (walk.maxCoeff() - walk.minCoeff()) * walk};
}

struct Bounds {
  Vector<double> keys, key_sizes, lags, lag_sizes;
};

// of the engine, for queries and keys in slots of n_q and n_k
template <class T>
Bounds error_bounds_of(const LagWeights<T>& c, const ErrorBoundCase<T>& x, const Vector<T>& of_lags) {
  const Index n_q = x.A.rows(), n_k = x.B.rows(), lags = n_q + n_k - 1;
  Workspace workspace;
  const Team team(workspace);
  const MatrixView<T> a = x.A, b = x.B, u = x.U;
  const Vector<T> values = x.U.rowwise().norm();
  const toeplitz::Product<T> product(Engine::block_causal, c.view(), {n_q, n_k, x.A.cols(), x.U.cols()}, team);
  Bounds bounds{Vector<double>(n_k), Vector<double>(n_k), Vector<double>(lags), Vector<double>(lags)};
  product.gradient_error_bounds(
      {a, b, u, Slots{n_q}, Slots{n_k}, x.e.size() > 0 ? x.e.data() : nullptr},
      {x.sizes.data(), values.data(), of_lags.data()},
      {bounds.keys.data(), bounds.key_sizes.data(), bounds.lags.data(), bounds.lag_sizes.data(), lags}, team);
  return bounds;
}

template <class X>
bool same(const X& a, const X& b) {
  return (a.array() == b.array()).all();
}

}  // namespace

TEMPLATE_TEST_CASE("block_causal: errors of gradients beyond direct rounding are at most 1.25 times their bound",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<double> all;
  const auto check = [&](const std::string& what, const ErrorBoundCase<T>& x, const LagWeights<T>& c) {
    const BoundRatios found = ExactGradients<T>(c, x).errors(Engine::block_causal);
    INFO(x.name << ", " << what << ": " << found.where);
    CHECK(found.most <= 1.25);
    all.insert(all.end(), found.all.begin(), found.all.end());
  };
  const std::vector<HostileBias> biases = hostile_biases();
  const double range = 50;  // nothing underflows
  std::size_t turn = 0;     // so that not all combinations are tested
  for (ErrorBoundCase<T>& x : error_bound_cases<T>(430, 410, 3, 3))
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
      const std::size_t which = (turn + 2 * k) % 4;
      x.e = exponents(410, range)[which];
      const HostileBias& bias = biases[turn++ % biases.size()];
      const Index last = turn % 3 == 0 ? -20 : turn % 3 == 1 ? 30 : 0;
      check(bias.name + ", last lag " + std::to_string(last) + ", exponents " + std::to_string(which), x,
            bias.weights<T>(430, 410, last));
    }
  // blocks of two sizes
  if (sizeof(T) == 4) {
    const Index n = 4400;
    LagWeights<T> c = biases[0].weights<T>(n, n, 0);
    c.values.head(n - 200).setZero();
    ErrorBoundCase<T> x = error_bound_cases<T>(n, n, 2, 2)[1];
    check("blocks of two sizes", x, c);
    x.e = exponents(n, range)[3];
    check("blocks of two sizes, exponents", x, c);
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::ranges::nth_element(all, middle);
  CHECK(*middle > 0.003);
}

TEST_CASE("block_causal: the error bound of a key depends on the queries after its block, that of a lag on its pairs",
          "[toeplitz]") {
  const Index n = 700, early = 200, late = 640;
  const LagWeights<double> c = hostile_biases()[0].weights<double>(n, n, 0);
  const Vector<double> of_lags = Vector<double>::Constant(2 * n - 1, 1e-30);
  ErrorBoundCase<double> x = error_bound_cases<double>(n, n, 3, 3)[0];
  const Bounds before = error_bounds_of(c, x, of_lags);
  // pairs of a key and a query in one block of 128 have no FFT
  CHECK(before.keys.tail(n - late).isZero(0));
  CHECK(before.keys.head(late).minCoeff() > 0);
  CHECK(before.key_sizes.tail(n - late).isZero(0));
  CHECK(before.key_sizes.head(late).minCoeff() > 0);
  // and no lag is after 0
  CHECK(before.lags.tail(n).isZero(0));
  CHECK(before.lags.head(n - 1).minCoeff() > 0);

  ErrorBoundCase<double> y = x;
  y.A.topRows(early) *= 1e12;
  const Bounds of_early = error_bounds_of(c, y, of_lags);
  CHECK(same<Vector<double>>(before.keys.tail(n - 256), of_early.keys.tail(n - 256)));
  CHECK(before.keys[0] < of_early.keys[0]);
  y = x;
  y.sizes.tail(n - late) *= 1e12;
  const Bounds of_late = error_bounds_of(c, y, of_lags);
  CHECK(same(before.keys, of_late.keys));
  CHECK((before.key_sizes.head(late).array() < 1e-6 * of_late.key_sizes.head(late).array()).all());
  y = x;
  y.B.topRows(1) *= 1e12;
  const Bounds of_first = error_bounds_of(c, y, of_lags);
  CHECK(of_first.keys[0] > 1e6 * before.keys[0]);
  CHECK(same<Vector<double>>(before.keys.tail(n - 1), of_first.keys.tail(n - 1)));
  CHECK(of_first.lags[0] > 1e6 * before.lags[0]);
}

TEST_CASE("block_causal: the error bound of gradients includes key log-scales", "[toeplitz]") {
  const Index n = 1300;
  const LagWeights<double> c = hostile_biases()[0].weights<double>(n, n, 0);
  const Vector<double> of_lags = Vector<double>::Constant(2 * n - 1, 1e-30);
  ErrorBoundCase<double> x = error_bound_cases<double>(n, n, 3, 3)[0];
  for (const Vector<double>& e : exponents(n, 20)) {
    if (e.size() == 0) continue;
    x.e = e;
    const Bounds got = error_bounds_of(c, x, of_lags);
    // e^e_j B_j, and rows that are divided by the largest factor so far
    ErrorBoundCase<double> plain = x;
    plain.e.resize(0);
    double largest = x.e[0];
    for (Index j = 0; j < n; ++j) {
      largest = std::max(largest, x.e[j]);
      plain.B.row(j) *= std::exp(x.e[j]);
      plain.A.row(j) *= std::exp(-largest);
    }
    const Bounds expected = error_bounds_of(c, plain, of_lags);
    CHECK(worst_ratio(got.keys, expected.keys, 1e-9 * expected.keys) <= 1);
    CHECK(worst_ratio(got.key_sizes, expected.key_sizes, 1e-9 * expected.key_sizes) <= 1);
    CHECK(worst_ratio(got.lags, expected.lags, 1e-9 * expected.lags) <= 1);
    CHECK(worst_ratio(got.lag_sizes, expected.lag_sizes, 1e-9 * expected.lag_sizes) <= 1);
  }
}

}  // namespace nprf::test::toeplitz_block_causal_backward_error_bound
