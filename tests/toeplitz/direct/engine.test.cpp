// SPDX-License-Identifier: MIT

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_engine {

namespace {

constexpr auto make_direct = make_product(Engine::direct);

Matrix<double> multiply(const LagWeights<double>& c, const Matrix<double>& A, const Matrix<double>& B,
                        const Matrix<double>& U) {
  Workspace workspace;
  const Team team(workspace);
  Matrix<double> Y = Matrix<double>::Constant(A.rows(), U.cols(), 17);
  const MatrixView<double> a = A, b = B, u = U;
  make_direct(c.view(), {A.rows(), B.rows(), A.cols(), U.cols()}, team)
      .contract({a, b, u, Slots{A.rows()}, Slots{B.rows()}}, Y, team);
  return Y;
}

double error(const LagWeights<double>& c, const Matrix<double>& A, const Matrix<double>& B, const Matrix<double>& U) {
  return product_error(Engine::direct, c, A, B, U, multiply(c, A, B, U));
}

}  // namespace

TEST_CASE("the direct engine is right at the edges of its tiles", "[toeplitz]") {
  using Tile = toeplitz::ForwardTile<double>;
  const Index rows = Tile::rows, keys = Tile::keys;
  for (const Index n_q : {Index{1}, rows - 1, rows, rows + 1, 2 * rows, 2 * rows + 1})
    for (const Index n_k : {Index{1}, keys - 1, keys, keys + 1, 2 * keys - 1}) {
      INFO("n_q " << n_q << " n_k " << n_k);
      CHECK(error(random_weights<double>(n_q, n_k, 4), normal<double>(n_q, 3, 1), normal<double>(n_k, 3, 2),
                  normal<double>(n_k, 2, 3)) <= 1);
    }
}

TEST_CASE("the direct engine skips no tile that holds a weight", "[toeplitz]") {
  const Index n_q = 300, n_k = 400;
  const auto A = normal<double>(n_q, 2, 1), B = normal<double>(n_k, 2, 2), U = normal<double>(n_k, 1, 3);
  // a single diagonal, or two, anywhere: next to it there is nothing
  for (Index lag = -(n_q - 1); lag < n_k; lag += (lag > -5 && lag < 5) || lag % 128 > 120 ? 1 : 7) {
    INFO("lag " << lag);
    CHECK(error({lag, Vector<double>::Constant(1, 1.5)}, A, B, U) <= 1);
    Vector<double> two = Vector<double>::Zero(131);
    two[0] = 1, two[130] = -2;
    CHECK(error({lag, two}, A, B, U) <= 1);
  }
}

TEMPLATE_TEST_CASE("the direct engine: errors do not grow with the number of keys", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 7, n_k = 100 * chunk_keys + 5;
  const Matrix<T> A = Matrix<T>::Ones(n_q, 1), B = Matrix<T>::Ones(n_k, 1), U = Matrix<T>::Constant(n_k, 3, T(0.1));
  const LagWeights<T> c{-(n_q - 1), Vector<T>::Ones(n_q + n_k - 1)};
  Workspace workspace;
  const Team team(workspace);
  Matrix<T> Y = Matrix<T>::Constant(n_q, 3, 17);
  Vector<T> sums(n_q);
  const MatrixView<T> a = A, b = B, u = U;
  const auto engine = make_direct(c.view(), {n_q, n_k, 1, 3}, team);
  engine.contract({a, b, u, Slots{n_q}, Slots{n_k}}, Y, team, sums.data());
  CHECK(engine.longest_plain_sum(n_k) == chunk_keys);
  // equal terms, by tiles of 64 keys
  const double roundings = 64 + static_cast<double>(chunk_keys) / 64 + 2;
  const double exact = static_cast<double>(T(0.1)) * static_cast<double>(n_k);
  CHECK(worst_ratio(Y, Matrix<double>::Constant(n_q, 3, exact), epsilon<T> / 2 * roundings * exact) <= 1);
  CHECK(worst_ratio(sums, Vector<T>::Constant(n_q, static_cast<T>(n_k)), 0) <= 1);
}

TEST_CASE("the direct engine: rounding errors are per row", "[toeplitz]") {
  // rows of A from 1e-100 to 1e100, and weights growing by e with each lag of distance
  const Index n = 260;
  Matrix<double> A = normal<double>(n, 3, 1);
  for (Index i = 0; i < n; ++i) A.row(i) *= std::pow(10., static_cast<double>(i % 9) * 25 - 100);
  LagWeights<double> c{-(n - 1), Vector<double>(n)};
  for (Index k = 0; k < n; ++k) c.values[k] = std::exp(static_cast<double>(-k));
  CHECK(error(c, A, normal<double>(n, 3, 2), normal<double>(n, 2, 3)) <= 1);
}

TEST_CASE("with one-sided weights later tokens change no bit of earlier rows", "[toeplitz]") {
  const Index n = 300, now = 137;
  const auto A = normal<double>(n, 3, 1);
  Matrix<double> B = normal<double>(n, 3, 2), U = normal<double>(n, 2, 3);
  const LagWeights<double> c{-(n - 1), normal_vector<double>(n, 4)};
  const Matrix<double> before = multiply(c, A, B, U);
  B.bottomRows(n - now) *= 1e20;
  U.bottomRows(n - now) *= -1e20;
  const Matrix<double> after = multiply(c, A, B, U);
  CHECK(same_bits<double>(after.topRows(now), before.topRows(now)));
  CHECK(!same_bits<double>(after.middleRows(now, 1), before.middleRows(now, 1)));
}

TEMPLATE_TEST_CASE("the direct engine: a weight of 0 hides a non-finite key from its query, and from no other",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  for (const TestType x : {std::numeric_limits<TestType>::infinity(), std::numeric_limits<TestType>::quiet_NaN()}) {
    InSlots<TestType> causal(40, 40, Slots{40}, Slots{40}, 3, 5);
    causal.c.values.tail(39).setZero();
    const Matrix<TestType> before = causal.contract(make_direct, team);
    causal.B.row(17).setConstant(x);
    const Matrix<TestType> after = causal.contract(make_direct, team);
    CHECK(same_bits<TestType>(after.topRows(17), before.topRows(17)));
    for (Index i = 17; i < 40; ++i) CHECK_FALSE(after.row(i).allFinite());
  }
}

TEST_CASE("the direct engine: a weight of NaN is not treated as a weight of 0", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  InSlots<double> x(40, 40, Slots{40}, Slots{40}, 3, 5);
  x.c.values.setZero();
  x.c.values[39] = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(x.contract_with_ones(make_direct, team).array().isFinite().any());
}

TEST_CASE("a direct engine computes several products, with other tokens too", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const auto A = normal<double>(150, 2, 1), B = normal<double>(140, 2, 2), U = normal<double>(140, 3, 3);
  const LagWeights<double> c = random_weights<double>(150, 140, 4);
  const auto engine = make_direct(c.view(), {150, 140, 2, 3}, team);
  const Matrix<double> opposite = -A;
  const MatrixView<double> a = A, b = B, u = U, minus = opposite, a_part = A.topRows(7), b_part = B.topRows(11),
                           u_part = U.topRows(11);
  Matrix<double> first(150, 3), second(150, 3), part(7, 3);
  engine.contract({a, b, u, Slots{150}, Slots{140}}, first, team);
  engine.contract({minus, b, u, Slots{150}, Slots{140}}, second, team);
  engine.contract({a_part, b_part, u_part, Slots{7}, Slots{11}}, part, team);
  CHECK(same_bits(first, multiply(c, A, B, U)));
  CHECK(second == -first);
  CHECK(product_error<double>(Engine::direct, c, A.topRows(7), B.topRows(11), U.topRows(11), part) <= 1);
}

TEST_CASE("the scratch memory of the direct engine is a table of lags, and tiles of constant size", "[toeplitz]") {
  const auto peak = [](Index n_q, Index n_k, bool backward) {
    Workspace workspace;
    const Team team(workspace);
    const InSlots<double> x(n_q, n_k, Slots{n_q}, Slots{n_k}, 2, 3);
    if (backward)
      x.gradients(make_direct, team);
    else
      x.contract(make_direct, team);
    return static_cast<double>(workspace.peak_bytes()) / sizeof(double);
  };
  const double lags = 1500, line = 8;
  // the gradients have a sum over the lags for each of 8 blocks
  CHECK(std::abs(peak(2000, 1001, false) - peak(1000, 501, false) - lags) <= line);
  CHECK(std::abs(peak(2000, 1001, true) - peak(1000, 501, true) - 9 * lags) <= 2 * line);
  CHECK(peak(1000, 501, false) <= 2 * lags);
  using Tile = toeplitz::BackwardTile<double>;
  CHECK(peak(1000, 501, true) <= 9 * lags + 3 * Tile::rows * Tile::keys);
}

TEST_CASE("the direct engine skips no tile of tokens with gaps that holds a weight", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  InSlots<double> x(700, 900, random_slots(700, 0.5, 1), random_slots(900, 0.5, 2), 2, 1);
  for (Index lag = -699; lag < 900; lag += 13) {
    x.c = {lag, Vector<double>::Constant(1, 1.5)};
    INFO("lag " << lag);
    CHECK(x.error(Engine::direct, x.contract(make_direct, team)) <= 1);
  }
}

TEST_CASE("the direct engine: the weights of empty slots change no bit", "[toeplitz]") {
  // the same tokens once in slots 0..n-1 of a small span, once as part of a larger one
  Workspace workspace;
  const Team team(workspace);
  const InSlots<double> small(100, 90, Slots{100}, Slots{90}, 3, 2);
  InSlots<double> large(400, 300, Slots{100, 200}, Slots{90, 200}, 3, 2);
  large.c.values.setConstant(std::numeric_limits<double>::quiet_NaN());
  for (Index lag = -99; lag <= 89; ++lag) large.c.values[lag - large.c.first] = small.c[lag];
  CHECK(same_bits(small.contract(make_direct, team), large.contract(make_direct, team)));
}

TEST_CASE("the direct engine: no bit depends on the number of threads, with very many features too",
          "[toeplitz][threads]") {
  // so many that a matrix product divides them into parts, which must not depend on the threads either
  check_thread_bits(InSlots<double>(400, 300, Slots{400}, Slots{300}, 700, 5), make_direct);
}

}  // namespace nprf::test::toeplitz_direct_engine
