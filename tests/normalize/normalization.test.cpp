// SPDX-License-Identifier: MIT
#include "nprf/normalize/normalization.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::normalize_normalization {

namespace {

template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());

// rows without symmetries, with entries of about 1
template <class T>
Matrix<T> rows(Index n, Index d) {
  Matrix<T> x(n, d);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(std::sin(1.3 * static_cast<double>(i * i) + 0.2));
  return x;
}

// | |scale x| / radius - 1 | in long double, so that it neither overflows nor underflows
template <class T, class Row>
double norm_error(T scale, const Row& x, double radius) {
  const long double square = x.template cast<long double>().squaredNorm();
  return static_cast<double>(std::abs(static_cast<long double>(scale) * std::sqrt(square) / radius - 1));
}

// dL/dx from dL/dx'
Matrix<double> backward(const Normalization& normalization, const Matrix<double>& scaled, const Vector<double>& scale,
                        Matrix<double> dscaled) {
  normalization.backward<double>(scaled, {scale.data(), static_cast<std::size_t>(scale.size())}, dscaled);
  return dscaled;
}

// the rounding errors of a sum of d squares, a square root and two more operations
template <class T>
double tolerance(Index d) {
  return epsilon<T> * (static_cast<double>(d) / 2 + 4);
}

}  // namespace

TEST_CASE("the default radius of unit normalization is the paper's, 1", "[normalize]") {
  CHECK(Normalization::unit().is_unit());
  CHECK(Normalization::unit().radius() == 1);
  CHECK(Normalization::unit(2.5).radius() == 2.5);
  CHECK_FALSE(Normalization::none().is_unit());
}

TEST_CASE("unit normalization rejects a radius that is not positive and finite", "[normalize]") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double radius : {0.0, -0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), infinity, -infinity})
    check_invalid([&] { Normalization::unit(radius); }, {"radius: expected a positive finite number", "got "});
  check_invalid([&] { Normalization::unit(-3); }, {"got -3"});
}

TEMPLATE_TEST_CASE("unit normalization scales every row to the radius", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const double radius : {1.0, 0.5, 3.0, 1e4})
    for (const Index d : {1, 2, 3, 7, 8, 64, 65}) {
      const Matrix<T> x = rows<T>(9, d);
      const Vector<T> scale = Normalization::unit(radius).row_scale<T>(x);
      REQUIRE(scale.size() == 9);
      for (Index i = 0; i < 9; ++i) {
        INFO("radius " << radius << " d " << d << " row " << i);
        CHECK(norm_error(scale[i], x.row(i), radius) <= tolerance<T>(d));
      }
    }
}

TEMPLATE_TEST_CASE("unit normalization scales rows of any binade to the radius", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index d = 65;
  const int most = std::numeric_limits<T>::max_exponent - 8;  // the largest power of two with finite |x| and 1 / |x|
  const Matrix<T> x = rows<T>(1, d);
  const T unit = Normalization::unit().row_scale<T>(x)[0];
  for (int exponent = -most; exponent <= most; ++exponent) {
    const Matrix<T> scaled = x * std::ldexp(T(1), exponent);
    const T scale = Normalization::unit().row_scale<T>(scaled)[0];
    INFO("2^" << exponent);
    REQUIRE(norm_error(scale, scaled.row(0), 1) <= tolerance<T>(d));
    REQUIRE(std::abs(static_cast<double>(std::ldexp(scale, exponent) / unit) - 1) <= 2 * tolerance<T>(d));
  }
}

TEMPLATE_TEST_CASE("the norm of a row of tiny scalars and a large one is the large one", "[normalize]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Matrix<T> x = Matrix<T>::Constant(4, 5, std::numeric_limits<T>::min());
  for (Index i = 0; i < 4; ++i) x(i, i) = i % 2 ? T(-2) : T(2);
  const Vector<T> scale = Normalization::unit(3).row_scale<T>(x);
  for (Index i = 0; i < 4; ++i) CHECK(scale[i] == T(1.5));
}

TEMPLATE_TEST_CASE("the factor of a zero row is zero", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Matrix<T> x = rows<T>(3, 4);
  x.row(1) << T(0), T(-0.0), T(0), T(-0.0);
  const Vector<T> scale = Normalization::unit(2).row_scale<T>(x);
  CHECK(scale[0] > 0);
  CHECK(scale[1] == 0);
  CHECK(scale[2] > 0);
}

TEMPLATE_TEST_CASE("the factor of a subnormal row is finite, and that of a row with a NaN is NaN", "[normalize]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const T smallest = std::numeric_limits<T>::denorm_min();
  CHECK(std::isfinite(Normalization::unit(1e10).row_scale<T>(Matrix<T>::Constant(1, 3, smallest))[0]));
  for (Index place = 0; place < 11; ++place) {
    Matrix<T> x = rows<T>(1, 11);
    x(0, place) = std::numeric_limits<T>::quiet_NaN();
    CHECK(std::isnan(Normalization::unit().row_scale<T>(x)[0]));
    x = (x.array() == x.array()).select(T(0), x);  // a NaN among zeros is not a zero row
    CHECK(std::isnan(Normalization::unit().row_scale<T>(x)[0]));
  }
}

TEMPLATE_TEST_CASE("an input without rows has no factors, and rows without columns count as zero rows", "[normalize]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Normalization& normalization : {Normalization::unit(), Normalization::none()}) {
    CHECK(normalization.row_scale<T>(Matrix<T>(0, 4)).size() == 0);
    CHECK(normalization.row_scale<T>(Matrix<T>(3, 0)).size() == 3);
  }
  CHECK(Normalization::unit().row_scale<T>(Matrix<T>(3, 0)).isZero(0));
}

TEMPLATE_TEST_CASE("no bit of a factor depends on the address of the row", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index d = 37;
  const Matrix<T> x = rows<T>(5, d);
  const Vector<T> scale = Normalization::unit().row_scale<T>(x);
  for (Index shift = 0; shift < 17; ++shift) {
    Matrix<T> wide = Matrix<T>::Zero(5, d + 17);
    wide.middleCols(shift, d) = x;
    CHECK(Normalization::unit().row_scale<T>(wide.middleCols(shift, d)) == scale);
  }
}

TEMPLATE_TEST_CASE("without normalization every row is multiplied by d^(-1/4)", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index d : {1, 16, 64, 81}) {
    const Vector<T> scale = Normalization::none().row_scale<T>(rows<T>(4, d));
    REQUIRE(scale.size() == 4);
    for (Index i = 0; i < 4; ++i) {
      const double fourth = std::pow(static_cast<double>(scale[i]), 4);
      CHECK(std::abs(fourth * static_cast<double>(d) - 1) <= 4 * epsilon<T>);
    }
  }
}

TEMPLATE_TEST_CASE("without the softmax scale the factors of none() are 1", "[normalize]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> x = rows<T>(4, 9);
  CHECK(Normalization::none().row_scale<T>(x, false) == Vector<T>::Ones(4));
  CHECK(Normalization::unit(2).row_scale<T>(x, false) == Normalization::unit(2).row_scale<T>(x, true));
}

TEST_CASE("the gradient of unit normalization is orthogonal to the row and equals finite differences", "[normalize]") {
  Matrix<double> x(3, 2), dscaled(3, 2);
  x << 3, 4, 0, 0, -1, 2;
  dscaled << 1, -2, 5, 6, 0.5, 0.25;
  const Normalization unit = Normalization::unit(2), none = Normalization::none();
  const Vector<double> s = unit.row_scale<double>(x);
  const Matrix<double> scaled = s.asDiagonal() * x;
  const Matrix<double> dx = backward(unit, scaled, s, dscaled);
  for (Index i = 0; i < 3; ++i) {
    CHECK(std::abs(dx.row(i).dot(x.row(i))) <= 1e-14);
    for (Index p = 0; p < 2; ++p) {
      const double h = 1e-6;
      Matrix<double> above = x, below = x;
      above(i, p) += h;
      below(i, p) -= h;
      if (i == 1) continue;  // a zero row stays zero, with gradient zero
      const Matrix<double> difference = (unit.row_scale<double>(above).asDiagonal() * above -
                                         unit.row_scale<double>(below).asDiagonal() * Matrix<double>(below)) /
                                        (2 * h);
      CHECK(std::abs(difference.cwiseProduct(dscaled).sum() - dx(i, p)) <= 1e-8);
    }
  }
  CHECK(dx.row(1).isZero(0));
  const Vector<double> constant = none.row_scale<double>(x);
  CHECK((backward(none, constant.asDiagonal() * x, constant, dscaled) - dscaled * constant[0]).norm() <= 1e-15);
}

TEMPLATE_TEST_CASE("factors written into the caller's storage are bitwise equal for any thread count",
                   "[normalize][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {0, 1, 127, 128, 129, 700}) {
    const Matrix<T> x = rows<T>(n, 37);
    for (const Normalization& normalization : {Normalization::unit(2), Normalization::none()})
      for (const bool softmax_scale : {true, false}) {
        const Vector<T> expected = normalization.row_scale<T>(x, softmax_scale);
        for (const std::size_t threads : {1u, 2u, 3u, 5u}) {
          std::vector<Workspace> workspaces(threads);
          Vector<T> scale = Vector<T>::Constant(n + 2, T(17));
          normalization.row_scale<T>(x, softmax_scale, scale.segment(1, n), Team(workspaces));
          INFO(n << " rows, " << threads << " threads");
          CHECK(scale.segment(1, n) == expected);
          CHECK((scale[0] == 17 && scale[n + 1] == 17));
        }
      }
  }
}

}  // namespace nprf::test::normalize_normalization
