// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/diagonal_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/gradient_sizes.hpp"

namespace nprf::test::toeplitz_block_causal_diagonal_blocks {

namespace {

constexpr double none = -std::numeric_limits<double>::infinity();

// Factors by place; those before the first query or key, which are not used, are NaN.
template <class T>
struct Case {
  Case(Index n_q, Index n_k, Index last_lag, Index r = 3, Index p = 2)
      : shape{n_q, n_k, r, p},
        c(weights(n_q, n_k, last_lag)),
        axis(c.support(), shape),
        A(by_place(axis.queries, r, 1)),
        B(by_place(axis.keys, r, 2)),
        U(by_place(axis.keys, p, 3)),
        G(by_place(axis.queries, p, 5)),
        rows(by_place(axis.queries, 1, 6).cwiseAbs()) {}

  static LagWeights<T> weights(Index n_q, Index n_k, Index last_lag) {
    LagWeights<T> c = random_weights<T>(n_q, n_k, 4);
    c.values.tail(std::max<Index>(c.last() - last_lag, 0)).setZero();
    return c;
  }
  static Matrix<T> by_place(const toeplitz::CausalAxis::Side& side, Index cols, std::uint64_t seed) {
    Matrix<T> X = Matrix<T>::Constant(side.end, cols, std::numeric_limits<T>::quiet_NaN());
    X.bottomRows(side.end - side.first) = normal<T>(side.end - side.first, cols, seed);
    return X;
  }

  // Y, of queries, and gradients and their sizes, by place
  std::pair<Matrix<T>, SizedGradients<T>> run(std::size_t threads = 1, bool sized = true) const {
    std::vector<Workspace> workspaces(threads);
    const Team team(workspaces);
    const MatrixView<T> a = A, b = B, u = U, g = G;
    const toeplitz::CausalLevels<T> levels(c.view(), axis, team);
    const double* given = e.size() > 0 ? e.data() : nullptr;
    const toeplitz::RunningKeyMax<T> key_max({a, b, u, Slots{shape.n_q}, Slots{shape.n_k}, given}, levels, team);
    const auto x = toeplitz::Factors<T>::without_gaps(a, b, u);
    const toeplitz::DiagonalBlocks<T> blocks(c.view(), axis, team);
    Matrix<T> Y = Matrix<T>::Constant(shape.n_q, shape.p, 17);
    blocks.contract(x, key_max, Y, team);
    SizedGradients<T> got({axis.queries.end, axis.keys.end, shape.r, shape.p}, shape.n_q + shape.n_k - 1);
    toeplitz::GradientRefs<T> out{got.d.dA, got.d.dB, got.d.dU, got.d.dc};
    out.set_zero();
    got.keys.setZero(), got.lags.setZero();
    toeplitz::GradientSizes<T> sizes;
    if (sized) sizes = {rows.data(), got.keys.data(), got.lags.data()};
    blocks.add_gradients(x, g, key_max, out, sizes, 1 - shape.n_q, team);
    return {Y, got};
  }

  Vector<double> exponents() const {
    Vector<double> spread = 8 * normal_vector<double>(shape.n_k, 7);
    for (Index j = 0; j < shape.n_k; j += 5) spread[j] = none;
    return spread;
  }

  ProductShape shape;
  LagWeights<T> c;
  toeplitz::CausalAxis axis;
  Matrix<T> A, B, U, G, rows;  // rows (.,1): sizes
  Vector<double> e;            // one for each key, or empty
};

// Plain loops: with w_ij = e^(e_j - M_i), M_i the largest log-scale up to row i,
//     Y_i = sum w_ij c (A_i.B_j) U_j    dA_i = sum w_ij c (G_i.U_j) B_j    dB_j, dU_j likewise
//     dc[l] = sum over j - i = l of w_ij (A_i.B_j)(G_i.U_j)
//     keys_j = sum w_ij c (A_i.B_j) s_i    lags_l = sum over j - i = l of w_ij (A_i.B_j) s_i
// over the pairs of places j <= i in one block of 128; or the same with all absolute values.
template <class T>
struct Sums {
  using Wide = Matrix<long double>;

  Sums(const Case<T>& x, bool absolute)
      : Y(Wide::Zero(x.shape.n_q, x.shape.p)),
        dA(Wide::Zero(x.A.rows(), x.shape.r)),
        dB(Wide::Zero(x.B.rows(), x.shape.r)),
        dU(Wide::Zero(x.B.rows(), x.shape.p)),
        dc(Wide::Zero(x.shape.n_q + x.shape.n_k - 1, 1)),
        keys(Wide::Zero(x.B.rows(), 1)),
        lags(dc) {
    const auto wide = [=](const Matrix<T>& X) {
      const Wide W = X.template cast<long double>();
      return absolute ? Wide(W.cwiseAbs()) : W;
    };
    const Wide A = wide(x.A), B = wide(x.B), U = wide(x.U), G = wide(x.G);
    const auto exponent = [&](Index j) { return x.e.size() > 0 ? x.e[j - x.axis.keys.first] : 0; };
    for (Index i = x.axis.queries.first; i < x.axis.queries.end; ++i) {
      const Index end = std::min(i + 1, x.axis.keys.end), row = i - x.axis.queries.first;
      double largest = none;
      for (Index j = x.axis.keys.first; j < end; ++j) largest = std::max(largest, exponent(j));
      for (Index j = std::max(i / 128 * 128, x.axis.keys.first); j < end; ++j) {
        const Index lag = j - x.axis.keys.first - row;
        const long double c = absolute ? std::abs(x.c[lag]) : x.c[lag], w = toeplitz::ratio(exponent(j), largest);
        const long double s = w * A.row(i).dot(B.row(j)), t = w * G.row(i).dot(U.row(j));
        Y.row(row) += c * s * U.row(j);
        dA.row(i) += c * t * B.row(j);
        dB.row(j) += c * t * A.row(i);
        dU.row(j) += c * s * G.row(i);
        dc(lag + x.shape.n_q - 1, 0) += s * G.row(i).dot(U.row(j));
        keys(j, 0) += c * s * x.rows(i, 0);
        lags(lag + x.shape.n_q - 1, 0) += s * x.rows(i, 0);
      }
    }
  }

  Wide Y, dA, dB, dU, dc, keys, lags;
};

// use(x) for sizes around those of strips and blocks, for weights up to lags on either side of 0, with and without
// log-scales
template <class T, class Use>
void for_each_case(Use&& use) {
  const auto both = [&](Case<T>&& x) {
    INFO("n_q " << x.shape.n_q << ", n_k " << x.shape.n_k << ", last lag " << x.c.support().last);
    use(x);
    x.e = x.exponents();
    INFO("with exponents");
    use(x);
  };
  for (const Index n : {1, 2, 31, 32, 33, 127, 128, 129, 300}) both({n, n, 0});
  for (const Index last : {-270, -127, -1, 1, 31, 140, 299}) both({300, 300, last});
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 200}, {200, 1}, {90, 290}, {290, 90}})
    both({n_q, n_k, 0});
  both({140, 150, -7, 9, 17});
}

}  // namespace

TEMPLATE_TEST_CASE("diagonal blocks have the pairs of a block without later keys, in the product and its gradients",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  for_each_case<TestType>([](const Case<TestType>& x) {
    const auto [Y, got] = x.run();
    const toeplitz::Gradients<TestType>& d = got.d;
    const Sums<TestType> sum(x, false), size(x, true);
    const double growth = direct_growth<TestType>(x.shape.r + x.shape.p, 128);
    CHECK(worst_ratio(Y, sum.Y, growth * size.Y) <= 1);
    CHECK(worst_ratio(d.dA, sum.dA, growth * size.dA) <= 1);
    CHECK(worst_ratio(d.dB, sum.dB, growth * size.dB) <= 1);
    CHECK(worst_ratio(d.dU, sum.dU, growth * size.dU) <= 1);
    const double growth_of_lags = direct_growth<TestType>(x.shape.r + x.shape.p, x.axis.length());
    CHECK(worst_ratio(d.dc, sum.dc, growth_of_lags * size.dc) <= 1);
    CHECK(worst_ratio(got.keys, sum.keys, growth * size.keys) <= 1);
    CHECK(worst_ratio(got.lags, sum.lags, growth_of_lags * size.lags) <= 1);
    // without sizes: no bit of the gradients changes
    const SizedGradients<TestType> without = x.run(1, false).second;
    CHECK(same_bits(without.d, d));
    CHECK((without.keys.isZero(0) && without.lags.isZero(0)));
  });
}

TEMPLATE_TEST_CASE("in diagonal blocks later tokens change no bit, not even by NaN", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> x(260, 260, 0);
  x.e = x.exponents();
  const Matrix<T> Y = x.run().first;
  for (const Index s : {0, 30, 31, 32, 100, 127, 128, 200, 258})
    for (const T value : {T(0), T(1e30), std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
      const auto same = [&](const char* what, auto&& change) {
        Case<T> other = x;
        change(other);
        INFO(what << " after " << s << " become " << value);
        CHECK(same_bits<T>(other.run().first.topRows(s + 1), Y.topRows(s + 1)));
      };
      same("keys", [&](Case<T>& y) { y.B.bottomRows(259 - s).setConstant(value); });
      same("values", [&](Case<T>& y) { y.U.bottomRows(259 - s).setConstant(value); });
      same("one value", [&](Case<T>& y) { y.U(s + 1, 1) = value; });
      same("exponents", [&](Case<T>& y) { y.e.tail(259 - s).setConstant(700); });
    }
}

TEMPLATE_TEST_CASE("a non-finite value reaches the rows of its block that attend to it, in its column only",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> x(260, 260, 0);
  const Sums<T> sum(x, false), size(x, true);
  x.U(150, 1) = std::numeric_limits<T>::quiet_NaN();
  const Matrix<T> Y = x.run().first;
  CHECK(worst_ratio(Y.col(0), sum.Y.col(0), direct_growth<T>(3, 128) * size.Y.col(0)) <= 1);
  for (Index i = 0; i < 260; ++i) CHECK(std::isnan(Y(i, 1)) == (i >= 150 && i < 256));
}

TEST_CASE("no bit of diagonal blocks depends on the number of threads", "[toeplitz][threads]") {
  Case<double> x(500, 450, 3);
  x.e = x.exponents();
  const auto first = x.run();
  for (const std::size_t threads : {2u, 3u, 5u}) {
    const auto now = x.run(threads);
    CHECK((same_bits(now.first, first.first) && same_bits(now.second.d, first.second.d)));
    CHECK((now.second.keys == first.second.keys && now.second.lags == first.second.lags));
  }
}

}  // namespace nprf::test::toeplitz_block_causal_diagonal_blocks
