// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/gradients.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "nprf/toeplitz/contract.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/throws.hpp"

using namespace nprf;
using namespace nprf::test;
using toeplitz::Gradients;
using toeplitz::gradients;

namespace {

struct Shape {
  Index n_q, n_k, r, p;
};

template <class T>
LagWeights<T> transposed(const LagWeights<T>& c) {
  return {-c.last(), c.values.reverse()};
}

// dc as its double sum, and how far an engine may be from it
template <class T>
double lag_error(Engine engine, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U, const Matrix<T>& G,
                 const Vector<T>& got) {
  const Index n_q = A.rows(), n_k = B.rows();
  const auto wide = [](const Matrix<T>& x) { return Matrix<double>(x.template cast<double>()); };
  const auto size = [](const Matrix<T>& x) { return Matrix<double>(x.template cast<double>().cwiseAbs()); };
  const Matrix<double> term = (wide(A) * wide(B).transpose()).cwiseProduct(wide(G) * wide(U).transpose());
  const Matrix<double> magnitude = (size(A) * size(B).transpose()).cwiseProduct(size(G) * size(U).transpose());
  Vector<double> expected = Vector<double>::Zero(n_q + n_k - 1), tolerance = expected;
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      expected[j - i + n_q - 1] += term(i, j);
      tolerance[j - i + n_q - 1] += direct_growth<T>(A.cols() + U.cols(), std::min(n_q, n_k)) * magnitude(i, j);
    }
  if (engine == Engine::fftw) {
    // the noise of a correlation is eps sqrt(log N) |w| |x| at every lag, for each pair of columns w = A_r o G_p, x =
    // B_r o U_p
    double noise = 0;
    for (Index r = 0; r < A.cols(); ++r)
      for (Index p = 0; p < U.cols(); ++p)
        noise +=
            wide(A).col(r).cwiseProduct(wide(G).col(p)).norm() * wide(B).col(r).cwiseProduct(wide(U).col(p)).norm();
    tolerance.setConstant(fft_margin * epsilon<T> * std::sqrt(std::log2(static_cast<double>(n_q + n_k))) * noise);
  }
  return worst_ratio(got, expected, tolerance);
}

template <class T>
void check(const Shape& s) {
  const auto A = normal<T>(s.n_q, s.r, 1), B = normal<T>(s.n_k, s.r, 2), U = normal<T>(s.n_k, s.p, 3),
             G = normal<T>(s.n_q, s.p, 5);
  const LagWeights<T> c = random_weights<T>(s.n_q, s.n_k, 4);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)) << " n_q " << s.n_q << " n_k " << s.n_k << " r " << s.r << " p " << s.p
                                   << (sizeof(T) == 4 ? " float" : " double"));
    const Gradients<T> d = gradients<T>(engine, c, A, B, U, G);
    CHECK(product_error(engine, c, G, U, B, d.dA) <= 1);
    CHECK(product_error(engine, transposed(c), U, G, A, d.dB) <= 1);
    CHECK(product_error(engine, transposed(c), B, A, G, d.dU) <= 1);
    CHECK(lag_error(engine, A, B, U, G, d.dc) <= 1);
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
       std::vector<Shape>{{2049, 2049, 1, 2}, {1000, 5000, 2, 1}, {300, 8000, 1, 1}, {17000, 200, 1, 1}})
    check<double>(s);
}

TEST_CASE("a gradient's columns of very different size keep their own digits", "[toeplitz]") {
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
    const Gradients<double> d = gradients<double>(engine, c, A, B, U, G);
    CHECK(product_error(engine, transposed(c), B, A, G, d.dU) <= 1);
    CHECK(d.dU.col(2).isZero(0));
  }
}

TEST_CASE("gradients of nothing are zero and have their shapes", "[toeplitz]") {
  for (const Shape& s : std::vector<Shape>{{0, 3, 2, 2}, {3, 0, 2, 2}, {3, 4, 0, 2}, {3, 4, 2, 0}}) {
    const Gradients<double> d =
        gradients<double>(Engine::automatic, {}, Matrix<double>::Ones(s.n_q, s.r), Matrix<double>::Ones(s.n_k, s.r),
                          Matrix<double>::Ones(s.n_k, s.p), Matrix<double>::Ones(s.n_q, s.p));
    CHECK((d.dA.rows() == s.n_q && d.dA.cols() == s.r && d.dA.isZero(0)));
    CHECK((d.dB.rows() == s.n_k && d.dB.cols() == s.r && d.dB.isZero(0)));
    CHECK((d.dU.rows() == s.n_k && d.dU.cols() == s.p && d.dU.isZero(0)));
    CHECK(d.dc.isZero(0));
  }
}

TEST_CASE("G of another shape is refused", "[toeplitz]") {
  const Matrix<double> x = Matrix<double>::Ones(4, 2);
  check_invalid([&] { gradients<double>(Engine::direct, {}, x, x, x, Matrix<double>::Ones(4, 3)); },
                {"G: expected 4 x 2", "got 4 x 3"});
}
