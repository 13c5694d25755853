// SPDX-License-Identifier: MIT

#if NPRF_USE_FFTW

#include <cmath>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_fftw_engine {

namespace {

constexpr auto make_fftw = make_product(Engine::fftw);

template <class T>
Matrix<T> multiply(const LagWeights<T>& c, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U) {
  Matrix<T> Y = Matrix<T>::Constant(A.rows(), U.cols(), T(17));
  Workspace workspace;
  const Team team(workspace);
  const MatrixView<T> a = A, b = B, u = U;
  make_fftw(c.view(), {A.rows(), B.rows(), A.cols(), U.cols()}, team)
      .contract({a, b, u, Slots{A.rows()}, Slots{B.rows()}}, Y, team);
  return Y;
}

template <class T>
Matrix<T> random_product(Index n_q, Index n_k, Index r, Index p) {
  return multiply(random_weights<T>(n_q, n_k, 4), normal<T>(n_q, r, 1), normal<T>(n_k, r, 2), normal<T>(n_k, p, 3));
}

}  // namespace

TEMPLATE_TEST_CASE("fftw: columns have separate scales", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Matrix<T> A = normal<T>(40, 3, 1), B = normal<T>(60, 3, 2), U = normal<T>(60, 5, 3);
  const LagWeights<T> c = random_weights<T>(40, 60, 4);
  Matrix<T> Y = multiply(c, A, B, U);
  // powers of two are exact: in U they pass to Y, in B and A they cancel
  const T to_U[] = {T(0x1p-90), T(0x1p20), 1, T(0x1p90), T(-0x1p-3)}, to_B[] = {T(0x1p-100), 1, T(0x1p70)};
  for (Index p = 0; p < 5; ++p) U.col(p) *= to_U[p], Y.col(p) *= to_U[p];
  for (Index r = 0; r < 3; ++r) B.col(r) *= to_B[r], A.col(r) /= to_B[r];
  CHECK(same_bits(multiply(c, A, B, U), Y));
}

TEMPLATE_TEST_CASE("fftw: gradients and error bounds are those of lanes", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const InSlots<T> x(130, 110, random_slots(130, 0.8, 1), random_slots(110, 0.7, 2), 3, 2);
  CHECK(same_bits(x.gradients(make_fftw, team), x.gradients(make_product(Engine::lanes), team)));
  const MatrixView<T> a = x.A, b = x.B, u = x.U;
  const toeplitz::Factors<T> factors{a, b, u, x.queries, x.keys};
  const Vector<T> sizes = x.U.cwiseAbs().rowwise().maxCoeff();
  const auto bounds = [&](Engine engine) {
    Vector<double> Y(x.A.rows()), sums(x.A.rows());
    make_product(engine)(x.c.view(), x.span, team)
        .row_error_bounds(factors, sizes.data(), {Y.data(), sums.data()}, team);
    return beside<double>(Y, sums);
  };
  CHECK(same_bits(bounds(Engine::fftw), bounds(Engine::lanes)));
}

TEST_CASE("threads that plan and run at a time get the bits of one alone", "[toeplitz][threads]") {
  const auto run = [](std::size_t t) {
    const Index n = 700 + 313 * static_cast<Index>(t);
    return random_product<double>(n, n, 2, 2);
  };
  std::vector<Matrix<double>> together(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < together.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) together[t] = run(t);
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < together.size(); ++t) {
    INFO("thread " << t);
    CHECK(same_bits(together[t], run(t)));
  }
}

TEST_CASE("the scratch memory of the fftw engine is as documented", "[toeplitz]") {
  const Index n = 5000;
  const auto peak = [](Index r, Index p) {
    Workspace workspace;
    const Team team(workspace);
    InSlots<double>(n, n, Slots{n}, Slots{n}, r, p).contract(make_fftw, team);
    return static_cast<double>(workspace.peak_bytes()) / sizeof(double);
  };
  const double lines = 40 * 8;                                // of padding
  CHECK(std::abs(peak(9, 2) - peak(8, 2) - 2 * n) <= lines);  // a column more of A and B
  CHECK(std::abs(peak(8, 4) - peak(8, 2) - 2 * n) <= lines);  // two more of Y
}

}  // namespace nprf::test::toeplitz_fftw_engine

#endif  // NPRF_USE_FFTW
