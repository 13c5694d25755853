// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/factors.hpp"

#include <string>
#include <vector>

#include "nprf/toeplitz/contract.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/throws.hpp"
#include "toeplitz/gradient_error.hpp"

namespace nprf::test::toeplitz_gradients {

using toeplitz::Gradients;
using toeplitz::gradients;

namespace {

struct Shape {
  Index n_q, n_k, r, p;
};

template <class T>
void check(const Shape& s) {
  const auto A = normal<T>(s.n_q, s.r, 1), B = normal<T>(s.n_k, s.r, 2), U = normal<T>(s.n_k, s.p, 3),
             G = normal<T>(s.n_q, s.p, 5);
  const LagWeights<T> c = random_weights<T>(s.n_q, s.n_k, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)) << " n_q " << s.n_q << " n_k " << s.n_k << " r " << s.r << " p " << s.p
                                   << (sizeof(T) == 4 ? " float" : " double"));
    const toeplitz::Gradients<T> d = gradients<T>(engine, c, A, B, U, G);
    CHECK(gradients_error(engine, c, A, B, U, G, d) <= 1);
  }
}

}  // namespace

TEST_CASE("the gradients of a product are the same product with the roles exchanged", "[toeplitz]") {
  for (const Shape& s : std::vector<Shape>{{1, 1, 1, 1},
                                           {1, 9, 2, 2},
                                           {9, 1, 2, 3},
                                           {5, 7, 2, 3},
                                           {63, 65, 3, 2},
                                           {128, 129, 4, 15},
                                           {257, 100, 5, 17},
                                           {100, 257, 1, 33},
                                           {300, 300, 3, 16}}) {
    check<double>(s);
    check<float>(s);
  }
}

TEST_CASE("gradients over several residue classes", "[toeplitz]") {
  // 2, 4 and 8 classes; 4097 and 8193 are just over a switch
  for (const Shape& s :
       NPRF_TEST_SANITIZED
           ? std::vector<Shape>{{2049, 200, 1, 2}, {300, 8000, 1, 1}}
           : std::vector<Shape>{{2049, 2049, 1, 2}, {1000, 5000, 2, 1}, {300, 8000, 1, 1}, {17000, 200, 1, 1}})
    check<double>(s);
}

TEST_CASE("columns of a gradient with very different magnitudes keep their digits", "[toeplitz]") {
  const Index n = 100;
  const auto A = normal<double>(n, 3, 1), B = normal<double>(n, 3, 2);
  Matrix<double> U = normal<double>(n, 4, 3), G = normal<double>(n, 4, 5);
  G.col(0) *= 1e12;
  G.col(3) *= 1e-12;
  G.col(2).setZero();
  U.col(1) *= 1e8;
  const LagWeights<double> c = random_weights<double>(n, n, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    const toeplitz::Gradients<double> d = gradients<double>(engine, c, A, B, U, G);
    CHECK(product_error(engine, transposed(c), B, A, G, d.dU) <= 1);
    CHECK(d.dU.col(2).isZero(0));
  }
}

TEST_CASE("gradients without tokens are zero and have their shapes", "[toeplitz]") {
  for (const Shape& s : std::vector<Shape>{{0, 3, 2, 2}, {3, 0, 2, 2}, {3, 4, 0, 2}, {3, 4, 2, 0}}) {
    const toeplitz::Gradients<double> d =
        gradients<double>(Engine::automatic, {}, Matrix<double>::Ones(s.n_q, s.r), Matrix<double>::Ones(s.n_k, s.r),
                          Matrix<double>::Ones(s.n_k, s.p), Matrix<double>::Ones(s.n_q, s.p));
    CHECK((d.dA.rows() == s.n_q && d.dA.cols() == s.r && d.dA.isZero(0)));
    CHECK((d.dB.rows() == s.n_k && d.dB.cols() == s.r && d.dB.isZero(0)));
    CHECK((d.dU.rows() == s.n_k && d.dU.cols() == s.p && d.dU.isZero(0)));
    CHECK(d.dc.isZero(0));
  }
}

TEST_CASE("gradients go into the caller's storage, and set_zero clears all of them", "[toeplitz]") {
  Matrix<double> dA = Matrix<double>::Ones(3, 2), dB = Matrix<double>::Ones(6, 4), dU = Matrix<double>::Ones(4, 5);
  Vector<double> dc = Vector<double>::Ones(8);
  toeplitz::GradientRefs<double> refs{dA, dB.block(1, 1, 4, 2), dU, dc.segment(1, 6)};
  refs.set_zero();
  CHECK((dA.isZero(0) && dU.isZero(0)));
  CHECK(dB.sum() == 24 - 8);
  CHECK(dc.sum() == 2);
}

TEST_CASE("G of another shape is refused", "[toeplitz]") {
  const Matrix<double> x = Matrix<double>::Ones(4, 2);
  check_invalid([&] { gradients<double>(Engine::direct, {}, x, x, x, Matrix<double>::Ones(4, 3)); },
                {"G: expected 4 x 2", "got 4 x 3"});
}

}  // namespace nprf::test::toeplitz_gradients
