// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

using namespace nprf;
using namespace nprf::test;
using Direct = toeplitz::DirectEngine<double>;

namespace {

Matrix<double> multiply(const LagWeights<double>& c, const Matrix<double>& A, const Matrix<double>& B,
                        const Matrix<double>& U) {
  Matrix<double> Y = Matrix<double>::Constant(A.rows(), U.cols(), 17);
  Direct(c, {A.rows(), B.rows(), A.cols(), U.cols()}).contract(A, B, U, Y);
  return Y;
}

double error(const LagWeights<double>& c, const Matrix<double>& A, const Matrix<double>& B, const Matrix<double>& U) {
  return product_error(Engine::direct, c, A, B, U, multiply(c, A, B, U));
}

}  // namespace

TEST_CASE("the direct engine is right at the edges of its tiles", "[toeplitz]") {
  const Index tile = Direct::tile;
  for (const Index n_q : {Index{1}, tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 1})
    for (const Index n_k : {Index{1}, tile - 1, tile, tile + 1, 2 * tile - 1}) {
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

TEST_CASE("the direct engine keeps each row's own digits", "[toeplitz]") {
  // rows of A from 1e-100 to 1e100, and weights growing by e with each lag of distance
  const Index n = 260;
  Matrix<double> A = normal<double>(n, 3, 1);
  for (Index i = 0; i < n; ++i) A.row(i) *= std::pow(10., static_cast<double>(i % 9) * 25 - 100);
  LagWeights<double> c{-(n - 1), Vector<double>(n)};
  for (Index k = 0; k < n; ++k) c.values[k] = std::exp(static_cast<double>(-k));
  CHECK(error(c, A, normal<double>(n, 3, 2), normal<double>(n, 2, 3)) <= 1);
}

TEST_CASE("with one-sided weights the future does not touch a bit of the past", "[toeplitz]") {
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

TEST_CASE("the direct engine gives zero for no features and for no weights", "[toeplitz]") {
  const auto U = normal<double>(4, 2, 3);
  CHECK(multiply(random_weights<double>(5, 4, 4), Matrix<double>(5, 0), Matrix<double>(4, 0), U).isZero(0));
  CHECK(multiply({0, Vector<double>()}, normal<double>(5, 2, 1), normal<double>(4, 2, 2), U).isZero(0));
}

TEST_CASE("a direct engine serves one product after the other", "[toeplitz]") {
  const auto A = normal<double>(150, 2, 1), B = normal<double>(140, 2, 2), U = normal<double>(140, 3, 3);
  const LagWeights<double> c = random_weights<double>(150, 140, 4);
  Direct engine(c, {150, 140, 2, 3});
  Matrix<double> first(150, 3), second(150, 3);
  engine.contract(A, B, U, first);
  engine.contract(-A, B, U, second);
  CHECK(same_bits(first, multiply(c, A, B, U)));
  CHECK(second == -first);
}

TEST_CASE("the direct engine's workspace is linear in the tokens", "[toeplitz]") {
  const std::size_t one = Direct::workspace_bytes({1000, 500, 8, 9}), two = Direct::workspace_bytes({2000, 1000, 8, 9});
  CHECK(two - one == 1500 * sizeof(double));
  CHECK(one >= (1000 + 500 - 1 + Direct::tile * Direct::tile) * sizeof(double));
}
