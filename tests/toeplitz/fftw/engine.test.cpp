// SPDX-License-Identifier: MIT

#if NPRF_USE_FFTW

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"
#include "toeplitz/mixed_scales.hpp"

namespace nprf::test::toeplitz_fftw_engine {

using toeplitz::SegmentedFft;

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
double error(const LagWeights<T>& c, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U, Index rows = 1000) {
  return product_error(Engine::fftw, c, A, B, U, multiply(c, A, B, U), some_rows(A.rows(), rows));
}

}  // namespace

TEST_CASE("residue classes make a transform that is long enough and not much longer", "[toeplitz]") {
  for (Index n = 1; n < 70000; n += n < 300 || (n + 100) % 4096 < 200 ? 1 : 97) {
    const SegmentedFft classes = SegmentedFft::of(n);
    INFO("n " << n << ": " << classes.count << " classes of " << classes.length);
    CHECK(classes.period() >= n);
    CHECK(classes.period() == classes.count * classes.length);
    CHECK(fft::is_smooth(classes.length));
    CHECK(classes.length % 2 == 0);  // a class starts at a multiple of 16 bytes in the spectrum, as FFTW requires
    CHECK((classes.count == 1 || classes.count == 2 || classes.count == 4 || classes.count == 8));
    if (n <= 32768) CHECK(classes.length <= 4096);
    CHECK(classes.segments(classes.length) == 1);
    CHECK(classes.segments(classes.length + 1) == 2);
    CHECK(classes.segments(n) <= classes.count);
    // even 7-smooth numbers are at most 12 % apart from 100 on, far less from 1000 on
    if (n >= 100) CHECK(static_cast<double>(classes.period()) <= 1.13 * static_cast<double>(n));
  }
}

TEST_CASE("each number of residue classes gives the same product", "[toeplitz]") {
  // 1, 2, 4 and 8 classes; both factors in one segment, in several, and each of them alone in several
  struct Case {
    Index n_q, n_k;
  };
  for (const auto& [n_q, n_k] : std::vector<Case>{{3, 2},
                                                  {2000, 2000},
                                                  {4000, 90},
                                                  {90, 4000},
                                                  {3000, 3000},
                                                  {100, 7900},
                                                  {7900, 100},
                                                  {8000, 8200},
                                                  {200, 16000},
                                                  {16000, 200},
                                                  {300, 24000},
                                                  {24000, 300},
                                                  {16500, 40},
                                                  {40, 16500},
                                                  {30, 33000},
                                                  {33000, 30}}) {
    INFO("n_q " << n_q << " n_k " << n_k);
    CHECK(error(random_weights<double>(n_q, n_k, 4), normal<double>(n_q, 2, 1), normal<double>(n_k, 2, 2),
                normal<double>(n_k, 3, 3), 30) <= 1);
  }
}

TEST_CASE("an impulse moves by exactly its lag in every class and segment", "[toeplitz]") {
  // total 12001: four classes of about 3000; a key in each segment, a lag of either sign
  const Index n_q = 6000, n_k = 6002;
  const Matrix<double> A = Matrix<double>::Ones(n_q, 1), B = Matrix<double>::Ones(n_k, 1);
  for (const Index key : {0, 1, 2999, 3000, 3001, 6001})
    for (const Index lag : {-5999, -3001, -3000, -1, 0, 1, 3000, 3001, 6001}) {
      Matrix<double> U = Matrix<double>::Zero(n_k, 1), Y = Matrix<double>::Zero(n_q, 1);
      U(key, 0) = 1;
      if (const Index i = key - lag; i >= 0 && i < n_q) Y(i, 0) = 3;
      INFO("key " << key << " lag " << lag);
      // each of log2 N butterfly steps rounds once: the root of 14, times the largest row
      const double tolerance = 3 * 4 * epsilon<double>;
      CHECK(worst_ratio(multiply<double>({lag, Vector<double>::Constant(1, 3)}, A, B, U), Y, tolerance) <= 1);
    }
}

TEST_CASE("the fftw engine gathers columns tile by tile", "[toeplitz]") {
  const Index n_q = 45, n_k = 50;
  for (const Index r : {1, 2, 17})
    for (const Index p : {1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 49}) {
      INFO("r " << r << " p " << p);
      CHECK(error(random_weights<double>(n_q, n_k, 4), normal<double>(n_q, r, 1), normal<double>(n_k, r, 2),
                  normal<double>(n_k, p, 3)) <= 1);
      CHECK(error(random_weights<float>(n_q, n_k, 4), normal<float>(n_q, r, 1), normal<float>(n_k, r, 2),
                  normal<float>(n_k, p, 3)) <= 1);
    }
}

TEST_CASE("columns are scaled by powers of two, which changes no bit", "[toeplitz]") {
  const Index n_q = 40, n_k = 60;
  const auto A = normal<float>(n_q, 3, 1), B = normal<float>(n_k, 3, 2), U = normal<float>(n_k, 5, 3);
  const LagWeights<float> c = random_weights<float>(n_q, n_k, 4);
  const Matrix<float> Y = multiply(c, A, B, U);
  Matrix<float> scaled = U, expected = Y;
  const float factors[] = {0x1p-90f, 0x1p20f, 1, 0x1p90f, -0x1p-3f};
  for (Index p = 0; p < U.cols(); ++p) {
    scaled.col(p) *= factors[p];
    expected.col(p) *= factors[p];
  }
  // a column shares its signal with another one; here it is alone
  CHECK(same_bits(multiply(c, A, B, scaled), expected));
}

TEST_CASE("more lengths than the cache of plans holds", "[toeplitz]") {
  for (Index n = 1; n < 600; n += 4) {
    INFO("n " << n);
    CHECK(error(random_weights<float>(n, n, 4), normal<float>(n, 1, 1), normal<float>(n, 1, 2), normal<float>(n, 1, 3),
                5) <= 1);
  }
}

TEST_CASE("threads that plan and run at a time get the bits of one alone", "[toeplitz][threads]") {
  const auto run = [](Index n) {
    return multiply(random_weights<double>(n, n, 4), normal<double>(n, 2, 1), normal<double>(n, 2, 2),
                    normal<double>(n, 2, 3));
  };
  std::vector<Matrix<double>> together(8), alone;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < together.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) together[t] = run(700 + 313 * static_cast<Index>(t));
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < together.size(); ++t) {
    INFO("thread " << t);
    CHECK(same_bits(together[t], run(700 + 313 * static_cast<Index>(t))));
  }
}

TEST_CASE("an fftw engine computes several products, with other tokens too", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const auto A = normal<double>(150, 2, 1), B = normal<double>(140, 2, 2), U = normal<double>(140, 3, 3);
  const LagWeights<double> c = random_weights<double>(150, 140, 4);
  const auto engine = make_fftw(c.view(), {150, 140, 2, 3}, team);
  const Matrix<double> opposite = -A;
  const MatrixView<double> a = A, b = B, u = U, minus = opposite, a_part = A.topRows(7), b_part = B.topRows(11),
                           u_part = U.topRows(11);
  Matrix<double> first(150, 3), second(150, 3), part(150, 3);
  engine.contract({a, b, u, Slots{150}, Slots{140}}, first, team);
  engine.contract({minus, b, u, Slots{150}, Slots{140}}, second, team);
  engine.contract({a_part, b_part, u_part, Slots{7}, Slots{11}}, part.topRows(7), team);
  CHECK(same_bits(first, multiply(c, A, B, U)));
  CHECK(second == -first);
  // an FFT's error bound is that of the whole span
  Matrix<double> A_all = Matrix<double>::Zero(150, 2), B_all = Matrix<double>::Zero(140, 2), U_all(B_all.rows(), 3);
  U_all.setZero(), part.bottomRows(143).setZero();
  A_all.topRows(7) = A.topRows(7), B_all.topRows(11) = B.topRows(11), U_all.topRows(11) = U.topRows(11);
  CHECK(product_error(Engine::fftw, c, A_all, B_all, U_all, part) <= 1);
}

TEST_CASE("the scratch memory of the fftw engine is as documented", "[toeplitz]") {
  const auto peak = [](Index n, Index r, Index p, bool backward) {
    Workspace workspace;
    const Team team(workspace);
    const InSlots<double> x(n, n, Slots{n}, Slots{n}, r, p);
    if (backward)
      x.gradients(make_fftw, team);
    else
      x.contract(make_fftw, team);
    return static_cast<double>(workspace.peak_bytes()) / sizeof(double);
  };
  // a column more: of A and B, or (in pairs) of U and Y; for the gradients dA and dB too, or dU in place of Y, and G
  const Index n = 5000;
  const double tokens = 2 * n, line = 8;
  CHECK(std::abs(peak(n, 9, 2, false) - peak(n, 8, 2, false) - tokens) <= 8 * line);
  CHECK(std::abs(peak(n, 8, 4, false) - peak(n, 8, 2, false) - 2 * tokens) <= 8 * line);
  CHECK(peak(n, 8, 3, false) == peak(n, 8, 4, false));
  CHECK(std::abs(peak(n, 9, 2, true) - peak(n, 8, 2, true) - 2 * tokens) <= 8 * line);
  CHECK(std::abs(peak(n, 8, 4, true) - peak(n, 8, 2, true) - 3 * tokens) <= 8 * line);
}

TEMPLATE_TEST_CASE("the fftw engine: empty slots are like tokens of zeros", "[toeplitz]", NPRF_TEST_SCALARS) {
  std::vector<Workspace> workspaces(3);
  const Team team(workspaces);
  with_gaps<TestType>([&](const InSlots<TestType>& x) {
    INFO(x.name());
    CHECK(x.error(Engine::fftw, x.contract(make_fftw, team)) <= 1);
    CHECK(x.error(Engine::fftw, x.gradients(make_fftw, team)) <= 1);
  });
}

TEMPLATE_TEST_CASE("the fftw engine: gaps over several residue classes", "[toeplitz]", NPRF_TEST_SCALARS) {
  // 2, 4 and 8 classes; each side in one segment and in several
  struct Span {
    Index n_q, n_k;
  };
  Workspace workspace;
  const Team team(workspace);
  for (const auto& [n_q, n_k] : {Span{1100, 3100}, Span{300, 8000}, Span{9000, 150}, Span{17000, 100}})
    for (const double chance : {0.05, 0.7}) {
      const InSlots<TestType> x(n_q, n_k, random_slots(n_q, chance, 1), random_slots(n_k, chance, 2), 1, 2);
      INFO(x.name());
      CHECK(x.error(Engine::fftw, x.contract(make_fftw, team)) <= 1);
      CHECK(x.error(Engine::fftw, x.gradients(make_fftw, team)) <= 1);
    }
}

TEMPLATE_TEST_CASE("the fftw engine: the sums of sizes are right", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto make = [](LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
    return toeplitz::FftwEngine<T>(lags, span, team);
  };
  check_sizes<T>(Engine::fftw, make, 20, 24);
  Workspace workspace;
  const Team team(workspace);
  for (const Index n_q : {1100, 9000})  // over several residue classes
    check_sizes(Engine::fftw, InSlots<T>(n_q, 600, random_slots(n_q, 0.7, 1), random_slots(600, 0.7, 2), 2, 2), make,
                team);
}

TEMPLATE_TEST_CASE("the fftw engine: small columns beside large ones keep their digits", "[toeplitz][long]",
                   NPRF_TEST_SCALARS) {
  check_mixed_scales<TestType>(Engine::fftw, 90, 110, 109);
}

TEST_CASE("the fftw engine: no queries or no keys in the slots give zeros", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const InSlots<double> no_keys(200, 300, random_slots(200, 0.5, 1), std::vector<Index>(), 3, 2);
  CHECK(no_keys.contract(make_fftw, team).isZero(0));
  const toeplitz::Gradients<double> d = no_keys.gradients(make_fftw, team);
  CHECK((d.dA.isZero(0) && d.dB.rows() == 0 && d.dU.rows() == 0 && d.dc.isZero(0)));
  const InSlots<double> no_queries(200, 300, std::vector<Index>(), random_slots(300, 0.5, 1), 3, 2);
  CHECK(no_queries.contract(make_fftw, team).rows() == 0);
  const toeplitz::Gradients<double> e = no_queries.gradients(make_fftw, team);
  CHECK((e.dA.rows() == 0 && e.dB.isZero(0) && e.dU.isZero(0) && e.dc.isZero(0)));
}

TEMPLATE_TEST_CASE("the fftw engine: no bit depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  const auto check = [](const InSlots<TestType>& x) { check_thread_bits(x, make_fftw); };
  // one class and several; fewer columns than threads, and more than blocks
  check({90, 70, Slots{90}, Slots{70}, 3, 2});
  check({600, 500, random_slots(600, 0.8, 1), random_slots(500, 0.7, 2), 13, 21});
  check({5000, 3500, Slots{5000}, Slots{3500}, 5, 7});
}

#endif  // NPRF_USE_FFTW

}  // namespace nprf::test::toeplitz_fftw_engine
