// SPDX-License-Identifier: MIT
#include "nprf/core/rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_rows {

TEMPLATE_TEST_CASE("sums of rows are those of loops in long double, whatever matrix the rows belong to", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index d : {0, 1, 7, 8, 33}) {
    const Matrix<T> all = normal<T>(4, 2 * d + 3, 1);
    const MatrixView<T> x = all.middleCols(1, d), y = all.middleCols(d + 2, d);  // rows that are not aligned
    for (Index i = 0; i < 4; ++i) {
      long double product = 0, magnitude = 0, square = 0, total = 0, size = 0;
      T largest = 0;
      for (Index l = 0; l < d; ++l) {
        product += static_cast<long double>(x(i, l)) * y(i, l), magnitude += std::abs(x(i, l) * y(i, l));
        square += static_cast<long double>(x(i, l)) * x(i, l);
        total += x(i, l), size += std::abs(x(i, l));
        largest = std::max(largest, std::abs(x(i, l)));
      }
      const double growth = epsilon<T> * static_cast<double>(d + 1);
      const auto differs = [&](T got, long double expected, long double terms) {
        return !(std::abs(static_cast<double>(got - expected)) <= growth * static_cast<double>(terms));
      };
      CHECK_FALSE(differs(dot(row_of(x, i), row_of(y, i)), product, magnitude));
      CHECK(std::abs(dot_in_double(row_of(x, i), row_of(y, i)) - static_cast<double>(product)) <=
            epsilon<double> * static_cast<double>((d + 1) * magnitude));
      CHECK_FALSE(differs(norm(row_of(x, i)), std::sqrt(square), std::sqrt(square)));
      CHECK_FALSE(differs(sum(row_of(x, i)), total, size));
      CHECK(largest_magnitude(row_of(x, i)) == largest);
    }
  }
}

TEMPLATE_TEST_CASE("updates of rows change no other row and no other column", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index d = 19;
  const Matrix<T> before = normal<T>(3, d + 2, 1), x = normal<T>(3, d, 2);
  const auto changed = [&](const auto& update) {
    Matrix<T> after = before;
    MatrixRef<T> part = after.middleCols(1, d);
    update(writable_row(part, 1), row_of(x, 1));
    Matrix<T> rest = after;
    rest.row(1).segment(1, d) = before.row(1).segment(1, d);
    CHECK(same_bits(rest, before));
    return Vector<T>(after.row(1).segment(1, d).transpose());
  };
  const Vector<T> y = before.row(1).segment(1, d).transpose(), z = x.row(1).transpose(), c = Vector<T>::Constant(d, 3);
  const double once = 2 * epsilon<T> * static_cast<double>(y.cwiseAbs().maxCoeff() + 3 * z.cwiseAbs().maxCoeff());
  CHECK(worst_ratio(changed([](auto to, auto from) { add_scaled(to, T(3), from); }), y + c.cwiseProduct(z), once) <= 1);
  CHECK(worst_ratio(changed([](auto to, auto) { scale(to, T(3)); }), c.cwiseProduct(y), once) <= 1);
  CHECK(worst_ratio(changed([](auto to, auto from) { set_scaled(to, T(3), from); }), c.cwiseProduct(z), once) <= 1);
  CHECK(worst_ratio(changed([](auto to, auto from) { set_quotient(to, from, T(3)); }), z.cwiseQuotient(c), once) <= 1);
}

TEMPLATE_TEST_CASE("a NaN or an infinity at any place of a row or of a matrix is found", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 3, d = 11;
  const Matrix<T> finite = normal<T>(n, d, 1);
  CHECK(is_finite(row_of(finite, 0)));
  CHECK(has_finite_entries(finite));
  CHECK(has_finite_entries(Matrix<T>(0, d)));
  for (const T bad :
       {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity()})
    for (Index l = 0; l < d; ++l) {
      Matrix<T> x = finite;
      x(1, l) = bad;
      CHECK_FALSE(is_finite(row_of(x, 1)));
      CHECK(is_finite(row_of(x, 0)));
      CHECK_FALSE(has_finite_entries(x));
      CHECK_FALSE(has_finite_entries(x.middleCols(l, 1)));
      if (l > 0) CHECK(has_finite_entries(x.leftCols(l)));
    }
}

TEMPLATE_TEST_CASE("selected and scaled rows, their mean, and products of a transposed matrix", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> a = normal<T>(9, 4, 1), b = normal<T>(9, 6, 2);
  const Index chosen[] = {8, 0, 8};
  CHECK(same_bits(selected_rows(a, std::span<const Index>(chosen)), Matrix<T>(a({8, 0, 8}, Eigen::indexing::all))));
  const Vector<T> factors = normal_vector<T>(9, 3);
  CHECK(same_bits(rows_scaled_by(entries_of(factors), a), Matrix<T>(factors.asDiagonal() * a)));
  const double bound = 9 * epsilon<T> * static_cast<double>((a.cwiseAbs().transpose() * b.cwiseAbs()).maxCoeff());
  CHECK(worst_ratio(transposed_product(a, b), Matrix<T>(a.transpose() * b), bound) <= 1);
  CHECK(worst_ratio(mean_row(a), Matrix<T>(a.colwise().mean().transpose()),
                    9 * epsilon<T> * static_cast<double>(a.cwiseAbs().maxCoeff())) <= 1);
}

}  // namespace nprf::test::core_rows
