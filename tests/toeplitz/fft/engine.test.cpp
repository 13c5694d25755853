// SPDX-License-Identifier: MIT

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"
#include "toeplitz/mixed_scales.hpp"

namespace nprf::test::toeplitz_fft_engine {

namespace {

constexpr auto make_lanes = make_product(Engine::lanes);

template <class T>
struct Case : InSlots<T> {
  Case(Index n_q, Index n_k, Index r, Index p) : InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, r, p) {}

  Matrix<T> contract() const {
    Workspace workspace;
    return InSlots<T>::contract(make_lanes, Team(workspace));
  }
  toeplitz::Gradients<T> gradients() const {
    Workspace workspace;
    return InSlots<T>::gradients(make_lanes, Team(workspace));
  }
};

// Numbers of columns around what one register and two hold, of queries and keys around the tree's lengths.
template <class T, class Use>
void for_each_case(Use&& use) {
  constexpr Index W = fft::lane_count<T>;
  for (const Index n : {1, 2, 7, 8, 9, 16, 17, 23, 31, 40, 65, 127, 250, 331}) use(Case<T>(n, n, 3, 2));
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 70}, {70, 1}, {33, 100}, {150, 20}})
    use(Case<T>(n_q, n_k, 2, 3));
  for (const Index p : {Index{1}, W - 1, W, W + 1, 2 * W - 1, 2 * W + 1})
    for (const Index r : {Index{1}, Index{2}, Index{5}, W + 1, 2 * W, 2 * W + 3}) use(Case<T>(20, 24, r, p));
  use(Case<T>(40, 40, 37, W + 1));  // several blocks of features
}

}  // namespace

TEMPLATE_TEST_CASE("the product of the lanes engine is that of a plain loop", "[toeplitz]", NPRF_TEST_SCALARS) {
  for_each_case<TestType>([](const Case<TestType>& x) {
    INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols());
    CHECK(product_error(Engine::lanes, x.c, x.A, x.B, x.U, x.contract()) <= 1);
  });
}

TEMPLATE_TEST_CASE("the lanes engine's gradients are the sums that define them", "[toeplitz]", NPRF_TEST_SCALARS) {
  for_each_case<TestType>([](const Case<TestType>& x) {
    INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols());
    CHECK(gradients_error(Engine::lanes, x.c, x.A, x.B, x.U, x.G, x.gradients()) <= 1);
  });
}

TEMPLATE_TEST_CASE("lanes: the sums of sizes are right", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_sizes<T>(
      Engine::lanes,
      [](LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
        return toeplitz::FftEngine<T>(lags, span, team);
      },
      20, 24);
}

TEMPLATE_TEST_CASE("lanes: small columns beside large ones keep their digits", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  check_mixed_scales<TestType>(Engine::lanes, 90, 110, 109);
}

TEMPLATE_TEST_CASE("lanes: columns have separate scales", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> x(60, 70, 6, 19);
  const Matrix<T> Y = x.contract();
  // powers of two are exact: in U they pass to Y, in B and A they cancel
  for (Index p = 0; p < x.U.cols(); ++p) x.U.col(p) *= std::ldexp(T(1), static_cast<int>(p % 5) * 9 - 18);
  for (Index r = 0; r < x.B.cols(); ++r) {
    const T scale = std::ldexp(T(1), static_cast<int>(r) * 7 - 20);
    x.B.col(r) *= scale;
    x.A.col(r) /= scale;
  }
  Matrix<T> scaled = x.contract();
  for (Index p = 0; p < x.U.cols(); ++p) scaled.col(p) /= std::ldexp(T(1), static_cast<int>(p % 5) * 9 - 18);
  CHECK(same_bits(scaled, Y));
}

TEMPLATE_TEST_CASE("lanes: columns of zeros stay zero, and have gradients", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> x(60, 70, 5, 19);
  x.U.col(3).setZero();
  x.U.col(18).setZero();
  x.B.col(1).setZero();
  x.B.col(4).setZero();
  x.G.col(2).setZero();
  const Matrix<T> Y = x.contract();
  CHECK(Y.col(3).isZero(0));
  CHECK(Y.col(18).isZero(0));
  CHECK(product_error(Engine::lanes, x.c, x.A, x.B, x.U, Y) <= 1);
  CHECK(gradients_error(Engine::lanes, x.c, x.A, x.B, x.U, x.G, x.gradients()) <= 1);
}

TEMPLATE_TEST_CASE("lanes: values near the ends of the range of T keep their digits", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  for (const int exponent : {Limits::min_exponent + 4, Limits::max_exponent - 20}) {
    Case<T> x(100, 100, 2, 3);
    const Matrix<T> Y = x.contract();
    x.U *= std::ldexp(T(1), exponent);
    const Matrix<T> extreme = x.contract();
    INFO("2^" << exponent);
    // a subnormal number has fewer digits
    const T step = std::max(Limits::denorm_min(), std::ldexp(Limits::epsilon(), exponent) * Y.cwiseAbs().maxCoeff());
    CHECK((extreme - std::ldexp(T(1), exponent) * Y).cwiseAbs().maxCoeff() <= step);
  }
}

}  // namespace nprf::test::toeplitz_fft_engine
