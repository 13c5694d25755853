// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/row_noise.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_row_noise {

namespace {

struct Hostile {
  std::string name;
  std::function<double(double)> bias;  // of a lag
};

std::vector<Hostile> hostile() {
  std::vector<Hostile> all{{"none", [](double) { return 0.0; }}};
  for (const double s : {0.01, -0.03, 0.1})
    all.push_back({"rising by " + std::to_string(s), [s](double lag) { return s * lag; }});
  for (const double at : {-150.0, 1.0, 120.0})
    for (const double height : {10.0, 25.0})
      all.push_back({"a peak of " + std::to_string(height) + " at " + std::to_string(at),
                     [=](double lag) { return lag == at ? height : 0; }});
  all.push_back({"a cosine", [](double lag) { return 3 * std::cos(0.3 * lag); }});
  all.push_back({"alibi", [](double lag) { return -0.3 * std::abs(lag); }});
  return all;
}

template <class T>
struct Factors {
  Matrix<T> A, B, U;
};

struct Errors {
  double most = 0;          // over the row's noise, once what its own terms are rounded by is taken off
  std::vector<double> all;  // each row's largest, over its noise
};

template <class T>
Errors errors(const LagWeights<T>& c, const Factors<T>& x) {
  const Index n_q = x.A.rows(), n_k = x.B.rows(), r = x.A.cols(), p = x.U.cols();
  Workspace workspace;
  const Team team(workspace);
  Matrix<T> Y(n_q, p), sums(n_q, 1);
  Vector<double> noise(n_q), sums_noise(n_q);
  const MatrixView<T> a = x.A, b = x.B, u = x.U;
  const toeplitz::Product<T> product(Engine::lanes, c.view(), {n_q, n_k, r, p}, team);
  REQUIRE(product.knows_noise());
  product.contract({a, b, u, {n_q}, {n_k}}, Y, team, sums.data(), {noise.data(), sums_noise.data()});

  Errors found;
  const auto add = [&](const Matrix<T>& got, const Matrix<T>& values, const Vector<double>& of) {
    const auto [expected, magnitude] = reference_product(c, x.A, x.B, values, all_rows(n_q));
    for (Index i = 0; i < n_q; ++i) {
      const auto error = (got.row(i).template cast<double>() - expected.row(i)).cwiseAbs();
      found.most = std::max(found.most, (error - direct_growth<T>(r, n_k) * magnitude.row(i)).maxCoeff() / of[i]);
      found.all.push_back(error.maxCoeff() / of[i]);
    }
  };
  add(Y, x.U, noise);
  add(sums, Matrix<T>::Ones(n_k, 1), sums_noise);
  return found;
}

}  // namespace

TEMPLATE_TEST_CASE("lanes: no entry is off by more than its own rounding and twice the noise of its row", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 160, n_k = 190, r = 5, p = 9;
  std::vector<double> all;
  for (const Hostile& one : hostile())
    for (const bool causal : {false, true})
      for (const double frequency : {0.0, 0.3})  // values of the cosine's frequency are in resonance
        for (const double spread : {0.0, 4.0}) {
          LagWeights<T> c{-(n_q - 1), Vector<T>(n_q + n_k - 1)};
          for (Index lag = c.first; lag < n_k; ++lag)
            c.values[lag - c.first] =
                causal && lag > 0 ? T(0) : static_cast<T>(std::exp(one.bias(static_cast<double>(lag))));
          // features as those of long queries and keys, whose sizes differ by orders of magnitude
          Factors<T> x{(spread * normal<double>(n_q, r, 1)).array().exp().template cast<T>(),
                       (spread * normal<double>(n_k, r, 2)).array().exp().template cast<T>(), normal<T>(n_k, p, 3)};
          for (Index j = 0; j < n_k && frequency > 0; ++j)
            x.U.row(j).setConstant(static_cast<T>(std::cos(frequency * static_cast<double>(j))));
          INFO(one.name << (causal ? ", causal" : "") << ", values of frequency " << frequency << ", spread "
                        << spread);
          const Errors here = errors(c, x);
          CHECK(here.most <= 2);
          all.insert(all.end(), here.all.begin(), here.all.end());
        }
  // nor is it beyond all measure
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  CHECK(all[all.size() / 2] > 0.01);
}

TEMPLATE_TEST_CASE("lanes: zeros have no noise", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 40;
  Workspace workspace;
  const Team team(workspace);
  const LagWeights<T> c = random_weights<T>(n, n, 4);
  const Matrix<T> A = normal<T>(n, 3, 1), B = normal<T>(n, 3, 2), U = Matrix<T>::Zero(n, 2);
  const MatrixView<T> a = A, b = B, u = U;
  Matrix<T> Y(n, 2);
  Vector<T> sums(n);
  Vector<double> noise = Vector<double>::Constant(n, 7), sums_noise = noise;
  toeplitz::Product<T>(Engine::lanes, c.view(), {n, n, 3, 2}, team)
      .contract({a, b, u, {n}, {n}}, Y, team, sums.data(), {noise.data(), sums_noise.data()});
  CHECK(noise.maxCoeff() == 0);
  CHECK(sums_noise.minCoeff() > 0);
  // an engine that keeps each row's digits has none
  const toeplitz::Product<T> direct(Engine::direct, c.view(), {n, n, 3, 2}, team);
  CHECK_FALSE(direct.knows_noise());
  direct.contract({a, b, u, {n}, {n}}, Y, team, sums.data(), {noise.data(), sums_noise.data()});
  CHECK(noise.maxCoeff() + sums_noise.maxCoeff() == 0);
}

}  // namespace nprf::test::toeplitz_row_noise
