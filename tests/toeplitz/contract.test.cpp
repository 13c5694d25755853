// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/contract.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nprf/toeplitz/plan/choose.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"
#include "toeplitz/gradient_error.hpp"

namespace nprf::test::toeplitz_contract {

using toeplitz::contract;

namespace {

struct Shape {
  Index n_q, n_k, r, p;
};

template <class T>
void check_against_reference(const Shape& s, Index rows = 1000) {
  const auto A = normal<T>(s.n_q, s.r, 1), B = normal<T>(s.n_k, s.r, 2), U = normal<T>(s.n_k, s.p, 3);
  const LagWeights<T> c = random_weights<T>(s.n_q, s.n_k, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)) << " n_q " << s.n_q << " n_k " << s.n_k << " r " << s.r << " p " << s.p
                                   << (sizeof(T) == 4 ? " float" : " double"));
    const Matrix<T> Y = contract<T>(engine, c, A, B, U);
    CHECK(product_error(engine, c, A, B, U, Y, some_rows(s.n_q, rows)) <= 1);
  }
}

}  // namespace

TEST_CASE("every engine computes the product that a double loop computes", "[toeplitz]") {
  for (const Index n : {1, 2, 3, 5, 16, 17, 63, 64, 65})
    for (const Index r : {1, 3, 8})
      for (const Index p : {1, 2, 5}) {
        check_against_reference<double>({n, n, r, p});
        check_against_reference<float>({n, n, r, p});
      }
  for (const Shape& s : std::vector<Shape>{{127, 128, 7, 15},
                                           {129, 127, 1, 16},
                                           {255, 257, 5, 17},
                                           {256, 256, 15, 33},
                                           {300, 20, 33, 1},
                                           {20, 300, 16, 33},
                                           {1, 1, 33, 33},
                                           {2, 130, 1, 1}}) {
    check_against_reference<double>(s);
    check_against_reference<float>(s);
  }
}

TEST_CASE("every engine is right for very different numbers of queries and keys", "[toeplitz]") {
  for (const Shape& s : std::vector<Shape>{{1, 5000, 2, 3}, {5000, 1, 2, 3}, {2, 9000, 1, 2}, {9000, 3, 3, 1}}) {
    check_against_reference<double>(s);
    check_against_reference<float>(s);
  }
}

TEST_CASE("every engine is right for thousands of tokens", "[toeplitz][long]") {
  for (const Index total : {4096, 4097, 8193, 8194, 16386, 32768, 40000}) {
    const Index n_q = total / 3, n_k = total + 1 - n_q;  // n_q + n_k - 1 = total
    const Index columns = total < 10000 ? 3 : 1;
    if (!NPRF_TEST_SANITIZED) check_against_reference<double>({n_q, n_k, 1, columns}, 40);
    if (total % 3 != 0) check_against_reference<float>({n_k, n_q, 2, 1}, 40);
  }
}

TEST_CASE("columns of very different magnitudes keep their accuracy", "[toeplitz]") {
  const Index n_q = 150, n_k = 190, r = 4;
  Matrix<float> U = normal<float>(n_k, 7, 3);
  const float sizes[] = {1e-30f, 1e6f, 1e30f, 1, 1e-38f, 1e35f, 1e-3f};
  for (Index p = 0; p < U.cols(); ++p) U.col(p) *= sizes[p];
  const auto A = normal<float>(n_q, r, 1), B = normal<float>(n_k, r, 2);
  const LagWeights<float> c = random_weights<float>(n_q, n_k, 4);
  for (const Engine engine : engines()) {
    const Matrix<float> Y = contract<float>(engine, c, A, B, U);
    const Product reference = reference_product(c, A, B, U, all_rows(n_q));
    const Matrix<double> tolerance = product_tolerance(engine, c, A, B, U, all_rows(n_q), reference);
    for (Index p = 0; p < U.cols(); ++p) {
      INFO(std::string(name(engine)) << ", a column of size " << sizes[p]);
      // numbers below 1e-38 have fewer digits: each of n_k sums may lose half of the smallest one
      const double smallest = static_cast<double>(n_k) * std::numeric_limits<float>::denorm_min();
      CHECK(worst_ratio(Y.col(p), reference.values.col(p), (tolerance.col(p).array() + smallest).matrix()) <= 1);
    }
  }
}

TEST_CASE("a lag outside the table has weight 0", "[toeplitz]") {
  const Index n_q = 200, n_k = 300;
  const auto A = normal<double>(n_q, 3, 1), B = normal<double>(n_k, 3, 2), U = normal<double>(n_k, 2, 3);
  const std::vector<LagRange> tables{{-5, 5},   {0, 0},      {-199, -199}, {299, 299},   {-400, 10},
                                     {-3, 900}, {-900, 900}, {150, 170},   {-130, -128}, {127, 129}};
  for (const Engine engine : engines())
    for (const LagRange& table : tables) {
      INFO(std::string(name(engine)) << ", lags " << table.first << " to " << table.last);
      const LagWeights<double> c{table.first, normal_vector<double>(table.size(), 4)};
      CHECK(product_error<double>(engine, c, A, B, U, contract<double>(engine, c, A, B, U)) <= 1);
    }
}

TEST_CASE("without weights at reachable lags the product is zero", "[toeplitz]") {
  const auto A = normal<double>(9, 3, 1), B = normal<double>(7, 3, 2), U = normal<double>(7, 2, 3);
  const std::vector<LagWeights<double>> none{{0, Vector<double>()},
                                             {-8, Vector<double>::Zero(15)},
                                             {7, Vector<double>::Ones(5)},
                                             {-20, Vector<double>::Ones(12)},
                                             {Index{1} << 50, Vector<double>::Ones(5)},
                                             {-(Index{1} << 50), Vector<double>::Ones(5)}};
  for (const Engine engine : all_engines())
    for (const LagWeights<double>& c : none) {
      Matrix<double> Y = Matrix<double>::Constant(9, 2, 17);
      contract<double>(engine, c, A, B, U, Y);
      CHECK(Y.isZero(0));
    }
}

TEST_CASE("a block of a larger matrix can be written, and no entry around it changes", "[toeplitz]") {
  const Index n_q = 20, n_k = 30;
  const auto A = normal<float>(n_q, 3, 1), B = normal<float>(n_k, 3, 2), U = normal<float>(n_k, 4, 3);
  const LagWeights<float> c = random_weights<float>(n_q, n_k, 4);
  for (const Engine engine : engines()) {
    Matrix<float> large = Matrix<float>::Constant(n_q + 2, 9, 17);
    contract<float>(engine, c, A, B, U, large.block(1, 3, n_q, 4));
    CHECK(product_error<float>(engine, c, A, B, U, large.block(1, 3, n_q, 4)) <= 1);
    large.block(1, 3, n_q, 4).setConstant(17);
    CHECK(large == Matrix<float>::Constant(n_q + 2, 9, 17));
  }
}

TEMPLATE_TEST_CASE("inputs are read in place or copied, with the same bits wherever they are", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 150, n_k = 140, r = 11, p = 13;
  const auto A = normal<T>(n_q, r, 1), B = normal<T>(n_k, r, 2), U = normal<T>(n_k, p, 3);
  const LagWeights<T> c = random_weights<T>(n_q, n_k, 4);
  const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> A_columns = A, B_columns = B, U_columns = U;
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    const Matrix<T> Y = contract<T>(engine, c, A, B, U);
    CHECK(same_bits(contract<T>(engine, c, A_columns, B_columns, U_columns), Y));
    for (const Index shift : {1, 2, 3, 7}) {  // of rows that are not contiguous, off alignment
      Matrix<T> a(n_q, r + 9), b(n_k, r + 8), u(n_k, p + 7), y(n_q, p + 8);
      a.middleCols(shift, r) = A, b.middleCols(shift, r) = B, u.middleCols(shift, p) = U;
      contract<T>(engine, c, a.middleCols(shift, r), b.middleCols(shift, r), u.middleCols(shift, p),
                  y.middleCols(shift, p));
      CHECK(same_bits<T>(y.middleCols(shift, p), Y));
    }
  }
}

TEST_CASE("empty factors give an empty or a zero product", "[toeplitz]") {
  const LagWeights<double> c = random_weights<double>(10, 10, 4);
  for (const Engine engine : engines())
    for (const Shape& s : std::vector<Shape>{{0, 5, 2, 3}, {5, 0, 2, 3}, {5, 4, 0, 3}, {5, 4, 2, 0}, {0, 0, 0, 0}}) {
      INFO(std::string(name(engine)) << " n_q " << s.n_q << " n_k " << s.n_k << " r " << s.r << " p " << s.p);
      Matrix<double> Y = Matrix<double>::Constant(s.n_q, s.p, 17);
      contract<double>(engine, c, Matrix<double>::Ones(s.n_q, s.r), Matrix<double>::Ones(s.n_k, s.r),
                       Matrix<double>::Ones(s.n_k, s.p), Y);
      CHECK(Y.isZero(0));
    }
}

TEST_CASE("automatic is the engine that choose names", "[toeplitz]") {
  for (const Index n : {20, 700}) {
    const auto A = normal<double>(n, 1, 1), B = normal<double>(n, 1, 2), U = normal<double>(n, 2, 3);
    const LagWeights<double> c = random_weights<double>(n, n, 4);
    Workspace workspace;
    const Engine chosen = toeplitz::choose(c.view(), {n, n, 1, 2}, {n}, {n}, workspace);
    CHECK(same_bits(contract<double>(Engine::automatic, c, A, B, U), contract<double>(chosen, c, A, B, U)));
  }
}

TEST_CASE("the number of threads that is set changes no bit of a product", "[toeplitz][threads]") {
  struct Kept {
    ~Kept() { set_num_threads(before); }
    const Index before = num_threads();
  } const kept;
  const Index n = 900;
  const auto A = normal<float>(n, 20, 1), B = normal<float>(n, 20, 2), U = normal<float>(n, 9, 3),
             G = normal<float>(n, 9, 5);
  const LagWeights<float> c = random_weights<float>(n, n, 4);
  for (const Engine engine : engines()) {
    set_num_threads(1);
    const Matrix<float> Y = contract<float>(engine, c, A, B, U);
    const toeplitz::Gradients<float> d = toeplitz::gradients<float>(engine, c, A, B, U, G);
    for (const Index threads : {2, 3, 5}) {
      set_num_threads(threads);
      INFO(std::string(name(engine)) << ", " << threads << " threads");
      CHECK(same_bits(contract<float>(engine, c, A, B, U), Y));
      CHECK(same_bits(toeplitz::gradients<float>(engine, c, A, B, U, G), d));
    }
  }
}

TEST_CASE("a product that cannot be computed is refused by name", "[toeplitz]") {
  const LagWeights<double> c = random_weights<double>(5, 4, 4);
  const auto A = normal<double>(5, 2, 1), B = normal<double>(4, 2, 2), U = normal<double>(4, 3, 3);
  const Matrix<double> narrow = B.leftCols(1), tall = normal<double>(6, 3, 3);
  for (const Engine engine : {Engine::automatic, Engine::direct, Engine::fftw}) {
    check_invalid([&] { contract<double>(engine, c, A, narrow, U); }, {"B:", "2 columns", "got 1"});
    check_invalid([&] { contract<double>(engine, c, A, B, tall); }, {"U:", "4 rows", "got 6"});
    Matrix<double> Y(5, 2);
    check_invalid([&] { contract<double>(engine, c, A, B, U, Y); }, {"Y:", "5 x 3", "got 5 x 2"});
  }
}

TEST_CASE("a zero column stays zero beside others", "[toeplitz]") {
  const auto A = normal<float>(30, 4, 1), B = normal<float>(50, 4, 2);
  Matrix<float> U = 1e30f * normal<float>(50, 3, 3);
  U.col(0).setZero();
  U.col(2).setZero();
  const LagWeights<float> c = random_weights<float>(30, 50, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    const Matrix<float> Y = toeplitz::contract<float>(engine, c, A, B, U);
    CHECK(Y.col(0).isZero(0));
    CHECK(Y.col(2).isZero(0));
  }
}

TEST_CASE("a column of subnormal numbers keeps its digits", "[toeplitz]") {
  const auto A = normal<float>(30, 4, 1), B = normal<float>(50, 4, 2);
  Matrix<float> U = Matrix<float>::Constant(50, 2, std::ldexp(1.0f, -130));
  U.col(1).setOnes();
  const LagWeights<float> c = random_weights<float>(30, 50, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    const Matrix<float> Y = toeplitz::contract<float>(engine, c, A, B, U);
    // the same sums as beside it, in the steps that subnormal numbers have
    const float step = std::numeric_limits<float>::denorm_min();
    CHECK((Y.col(0) - Y.col(1) * std::ldexp(1.0f, -130)).cwiseAbs().maxCoeff() <= 300 * step);
  }
}

}  // namespace nprf::test::toeplitz_contract
