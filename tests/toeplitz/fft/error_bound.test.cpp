// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/error_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_fft_error_bound {

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

// the errors of entries beyond the rounding of their terms, over the error bound of their row
struct Errors {
  double most = 0;
  std::vector<double> all;  // the largest whole error of each row over its error bound
};

template <class T>
void add_errors(Errors& found, const Matrix<T>& got, const Product& expected, double growth,
                const Vector<double>& bounds) {
  for (Index i = 0; i < got.rows(); ++i) {
    const auto error = (got.row(i).template cast<double>() - expected.values.row(i)).cwiseAbs().eval();
    const double beyond = (error - growth * expected.magnitude.row(i)).maxCoeff();
    if (beyond > 0) found.most = std::max(found.most, beyond / bounds[i]);
    if (bounds[i] > 0) found.all.push_back(error.maxCoeff() / bounds[i]);
  }
}

// of each engine
template <class T>
std::vector<Errors> errors(const LagWeights<T>& c, const Factors<T>& x) {
  const Index n_q = x.A.rows(), n_k = x.B.rows(), r = x.A.cols(), p = x.U.cols();
  const Matrix<T> ones = Matrix<T>::Ones(n_k, 1);
  const Product Y_expected = reference_product(c, x.A, x.B, x.U, all_rows(n_q)),
                sums_expected = reference_product(c, x.A, x.B, ones, all_rows(n_q));
  const Vector<T> sizes = x.U.cwiseAbs().rowwise().maxCoeff();
  const MatrixView<T> a = x.A, b = x.B, u = x.U;
  const toeplitz::Factors<T> factors{a, b, u, Slots{n_q}, Slots{n_k}};
  std::vector<Errors> all;
  for (const Engine engine : fft_engines()) {
    Workspace workspace;
    const Team team(workspace);
    Matrix<T> Y(n_q, p), sums(n_q, 1);
    Vector<double> bounds(n_q), sums_bound(n_q);
    const toeplitz::Product<T> product(engine, c.view(), {n_q, n_k, r, p}, team);
    REQUIRE((product.rounding() != toeplitz::Rounding::per_row));
    product.contract(factors, Y, team, sums.data());
    product.row_error_bounds(factors, sizes.data(), {bounds.data(), sums_bound.data()}, team);
    Errors& found = all.emplace_back();
    add_errors(found, Y, Y_expected, direct_growth<T>(r, n_k), bounds);
    add_errors(found, sums, sums_expected, direct_growth<T>(r, n_k), sums_bound);
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("errors of entries beyond direct rounding are at most 1.25 times the bound of their row",
                   "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 290, n_k = 310, r = 5, p = 9;
  std::vector<Errors> all(fft_engines().size());
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
          const std::vector<Errors> here = errors(c, x);
          for (std::size_t e = 0; e < here.size(); ++e) {
            INFO(name(fft_engines()[e]) << ", " << one.name << (causal ? ", causal" : "") << ", values of frequency "
                                        << frequency << ", spread " << spread);
            CHECK(here[e].most <= 1.25);
            all[e].all.insert(all[e].all.end(), here[e].all.begin(), here[e].all.end());
          }
        }
  // nor is the bound too large
  for (Errors& each : all) {
    const auto middle = each.all.begin() + static_cast<std::ptrdiff_t>(each.all.size() / 2);
    std::ranges::nth_element(each.all, middle);
    CHECK(*middle > 0.003);
  }
}

TEMPLATE_TEST_CASE("the error bound includes the underflow beside values that no row attends to", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const Index n_q = 420, n_k = 410, r = 4, p = 3;
  LagWeights<T> c{-(n_q - 1), Vector<T>::Zero(n_q + n_k - 1)};
  c.values[0 - c.first] = T(0.01), c.values[-293 - c.first] = T(1);
  const T small = std::sqrt(Limits::min()) * T(1e9);
  struct Sizes {
    T a, b, largest_b;
  };
  for (const Sizes& of : {Sizes{1, small, 1}, Sizes{1, small, small}, Sizes{small, 1, 1}}) {
    Factors<T> x{Matrix<T>::Constant(n_q, r, of.a), Matrix<T>::Constant(n_k, r, of.b), normal<T>(n_k, p, 3)};
    x.B.row(156).setZero();
    x.U.row(156).setConstant(Limits::max() / T(1e8));
    x.B.row(200).setConstant(of.largest_b);
    x.U.row(200).setZero();
    const std::vector<Errors> all = errors(c, x);
    for (std::size_t e = 0; e < all.size(); ++e) {
      INFO(name(fft_engines()[e]) << ", A " << of.a << " B " << of.b << ", at most " << of.largest_b);
      CHECK(all[e].most <= 1.25);
    }
  }
}

TEMPLATE_TEST_CASE("zeros have no error bound", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 300;
  Workspace workspace;
  const Team team(workspace);
  const LagWeights<T> c = random_weights<T>(n, n, 4);
  const Matrix<T> A = normal<T>(n, 3, 1), B = normal<T>(n, 3, 2), U = Matrix<T>::Zero(n, 2);
  const MatrixView<T> a = A, b = B, u = U;
  const Vector<T> sizes = Vector<T>::Zero(n);
  const toeplitz::Factors<T> x{a, b, u, Slots{n}, Slots{n}};
  for (const Engine engine : engines()) {
    INFO(name(engine));
    Vector<double> bounds = Vector<double>::Constant(n, 7), sums_bound = bounds;
    const toeplitz::Product<T> product(engine, c.view(), {n, n, 3, 2}, team);
    product.row_error_bounds(x, sizes.data(), {bounds.data(), sums_bound.data()}, team);
    CHECK((product.rounding() != toeplitz::Rounding::per_row) == is_fft(engine));
    CHECK(bounds.maxCoeff() == 0);
    if (engine == Engine::lanes || engine == Engine::fftw) CHECK(sums_bound.minCoeff() > 0);
  }
}

TEMPLATE_TEST_CASE("row error bound: norms of rows are right if squares underflow or overflow", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using toeplitz::SignalNorms;
  Workspace workspace;
  SignalNorms::Row sizes = SignalNorms::row(5, workspace);
  sizes.setOnes();
  const Matrix<T> rows = normal<T>(1, 5, 1);
  const double expected = toeplitz::row_error_bound(row_of(rows, 0), sizes, true);
  for (const int exponent : {-3, 3}) {
    const int shift = exponent * (std::numeric_limits<T>::max_exponent / 4);
    const Matrix<T> far = rows * std::ldexp(T(1), shift);
    INFO("times 2^" << shift);
    const double bound = std::ldexp(toeplitz::row_error_bound(row_of(far, 0), sizes, true), -shift);
    CHECK(std::abs(bound - expected) <= 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * expected);
  }
}

}  // namespace nprf::test::toeplitz_fft_error_bound
