// SPDX-License-Identifier: MIT
#include "nprf/decoder/running_sums.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_running_sums {

namespace {

constexpr Index d_v = 21;
constexpr double infinity = std::numeric_limits<double>::infinity();

template <Real T>
StateToken<T> token_of(const Matrix<T>& B, const Matrix<T>& v, Index j, double log_scale) {
  return {B.data() + j * B.cols(),
          1,
          v.data() + j * d_v,
          log_scale,
          B.row(j).norm(),
          v.row(j).cwiseAbs().maxCoeff(),
          true,
          true};
}

}  // namespace

TEMPLATE_TEST_CASE("running sums: sums of weighted terms", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index r : {1, 3, 16, 40})
    for (const double slope : {0.0, -0.3, 0.2})
      for (const double spread : {0.0, 5.0, 300.0}) {  // of log-scales
        constexpr Index n = 70;
        const Matrix<T> B = normal<T>(n, r, 1).cwiseAbs(), v = normal<T>(n, d_v, 2);
        const Vector<double> log_scales = spread * normal<double>(n, 1, 3).col(0);
        Vector<T> A = Vector<T>::Zero(padded_to_lanes(r));
        A.head(r) = normal<T>(1, r, 4).cwiseAbs().row(0);
        RunningSums<T> sums(r, d_v);
        Workspace scratch;
        CHECK(sums.log_scale() == -infinity);
        Index last = -1;
        for (Index count = 1; last + count < n; count = count % RunningSums<T>::block + 1) {
          std::vector<StateToken<T>> tokens;
          for (Index j = 0; j < count; ++j, ++last) tokens.push_back(token_of(B, v, last + 1, log_scales[last + 1]));
          sums.add(tokens, slope, scratch);
          Vector<T> N = Vector<T>::Zero(padded_to_lanes(d_v));
          const T D = sums.add_product(A.data(), T(0.5), N.data());
          Vector<double> expected = Vector<double>::Zero(d_v + 1);
          double norms = 0;
          for (Index j = 0; j <= last; ++j) {
            const double c = std::exp(log_scales[j] + slope * static_cast<double>(last - j) - sums.log_scale());
            const double weight = c * 0.5 * A.head(r).dot(B.row(j).transpose());
            expected.head(d_v) += weight * v.row(j).transpose().template cast<double>();
            expected[d_v] += weight;
            norms += c * B.row(j).norm();
          }
          // the roundings of a weight, of a feature times it, of r products, and of the sums, of which a block has
          // those of its terms; and in double of exponents
          const double exponents = epsilon<double> * (8 * spread + 70 * std::abs(slope)),
                       growth = epsilon<T> * (8 + 2 * std::sqrt(static_cast<double>(r))) + exponents,
                       error = growth * expected[d_v];
          Vector<T> all(d_v + 1);
          all << N.head(d_v), D;
          CHECK(worst_ratio(all, expected, error * (1 + v.cwiseAbs().maxCoeff())) <= 1);
          CHECK(std::abs(static_cast<double>(sums.norms()) - norms) <= (40 * epsilon<T> + exponents) * norms);
          // weights are at most 1, and the largest one of the sums does not vanish
          CHECK(expected[d_v] > 1e-8);
        }
        sums.clear();
        CHECK(sums.log_scale() == -infinity);
        Vector<T> N = Vector<T>::Zero(padded_to_lanes(d_v));
        CHECK(sums.add_product(A.data(), 1, N.data()) == 0);
        CHECK(N.isZero(0));
      }
}

TEST_CASE("running sums: the rounding errors of many terms do not add up", "[decoder]") {
  using T = float;
  constexpr Index r = 4, n = 300000;
  const Matrix<T> B = Matrix<T>::Constant(1, r, T(0.1)), v = Matrix<T>::Constant(1, d_v, T(1.7));
  RunningSums<T> sums(r, d_v);
  Workspace scratch;
  const StateToken<T> token = token_of(B, v, 0, 0);
  Vector<T> N = Vector<T>::Zero(padded_to_lanes(d_v)), A = Vector<T>::Zero(padded_to_lanes(r));
  A.head(r).setOnes();
  for (Index j = 0; j < n; ++j) sums.add({&token, 1}, 0, scratch);
  const double D = sums.add_product(A.data(), 1, N.data()), exact = n * r * static_cast<double>(T(0.1));
  CHECK(std::abs(D - exact) <= 2 * epsilon<T> * exact);
  CHECK(std::abs(N[d_v - 1] - exact * static_cast<double>(T(1.7))) <= 4 * epsilon<T> * exact);
}

TEST_CASE("running sums: non-finite tokens are counted and not added", "[decoder]") {
  using T = float;
  constexpr Index r = 3;
  Matrix<T> B = normal<T>(3, r, 1).cwiseAbs(), v = normal<T>(3, d_v, 2);
  Workspace scratch;
  Vector<T> A = Vector<T>::Zero(padded_to_lanes(r));
  A.head(r).setOnes();
  RunningSums<T> sums(r, d_v);
  const StateToken<T> first = token_of(B, v, 0, 0);
  sums.add({&first, 1}, 0, scratch);
  CHECK(sums.has_finite_values());
  StateToken<T> key = token_of(B, v, 1, -infinity);
  B.row(1).setZero();
  key.has_finite_key = false;
  sums.add({&key, 1}, 0, scratch);
  CHECK(sums.non_finite_keys() == 1);
  v(2, 4) = std::numeric_limits<T>::infinity();
  StateToken<T> value = token_of(B, v, 2, 0);
  value.has_finite_value = false, value.largest_value = 1;
  sums.add({&value, 1}, 0, scratch);
  CHECK_FALSE(sums.has_finite_values());
  CHECK(sums.non_finite_values()[4] == std::numeric_limits<T>::infinity());
  CHECK(sums.non_finite_values()[3] == 0);
  Vector<T> N = Vector<T>::Zero(padded_to_lanes(d_v));
  const T D = sums.add_product(A.data(), 1, N.data());
  CHECK(D == Approx(B.row(0).sum() + B.row(2).sum()));
  CHECK(N[4] == Approx(B.row(0).sum() * v(0, 4)));
  CHECK(N[3] == Approx(B.row(0).sum() * v(0, 3) + B.row(2).sum() * v(2, 3)));
}

}  // namespace nprf::test::decoder_running_sums
