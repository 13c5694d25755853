// SPDX-License-Identifier: MIT
#include "nprf/core/pack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_pack {

namespace {

template <class T>
constexpr Index W = Pack<T>::size;

// the scalars of a pack
template <class T>
Vector<T> scalars(const Pack<T>& pack) {
  Vector<T> x(W<T>);
  pack.store(x.data());
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("a pack is loaded from and stored to any address, and nothing else is written", "[core]",
                   NPRF_TEST_SCALARS) {
  const Vector<TestType> from = normal_vector<TestType>(3 * W<TestType>, 1);
  for (Index shift = 0; shift <= W<TestType>; ++shift) {
    Vector<TestType> to = Vector<TestType>::Constant(3 * W<TestType>, 17);
    Pack<TestType>::load(&from[shift]).store(&to[shift + 1]);
    CHECK(to.segment(shift + 1, W<TestType>) == from.segment(shift, W<TestType>));
    CHECK((to.array() == 17).count() == 2 * W<TestType>);
  }
  CHECK(scalars(Pack<TestType>::all(3)) == Vector<TestType>::Constant(W<TestType>, 3));
}

TEMPLATE_TEST_CASE("packs add and multiply scalar by scalar", "[core]", NPRF_TEST_SCALARS) {
  const Vector<TestType> a = normal_vector<TestType>(W<TestType>, 1), b = normal_vector<TestType>(W<TestType>, 2),
                         c = normal_vector<TestType>(W<TestType>, 3);
  const auto A = Pack<TestType>::load(a.data()), B = Pack<TestType>::load(b.data()), C = Pack<TestType>::load(c.data());
  CHECK(scalars(A + B) == a + b);
  CHECK(scalars(A - B) == a - b);
  CHECK(scalars(-A) == -a);
  CHECK(scalars(A * B) == a.cwiseProduct(b));
  CHECK(scalars(A / B) == a.cwiseQuotient(b));
  CHECK(scalars(larger(A, B)) == a.cwiseMax(b));
  CHECK(A.largest() == a.maxCoeff());
  CHECK(scalars(abs(A)) == a.cwiseAbs());
  CHECK(scalars(larger_or_nan(A, B)) == a.cwiseMax(b));
  CHECK(A.largest_or_nan() == a.maxCoeff());
  CHECK(worst_ratio(scalars(multiply_add(A, B, C)), a.cwiseProduct(b) + c, 8 * epsilon<TestType>) <= 1);
  CHECK(std::abs(A.sum() - a.sum()) <= 8 * epsilon<TestType> * a.cwiseAbs().sum());
}

TEMPLATE_TEST_CASE("a dot product by packs has the same bits at any address", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {Index{0}, Index{1}, W<T>, 3 * W<T> - 1}) {
    const Vector<T> a = normal_vector<T>(n, 1), b = normal_vector<T>(n, 2);
    const T product = dot_by_packs(a.data(), b.data(), n);
    CHECK(std::abs(product - a.dot(b)) <= static_cast<T>(n + 1) * epsilon<T> * a.cwiseAbs().dot(b.cwiseAbs()));
    for (Index shift = 1; shift < W<T>; ++shift) {
      Vector<T> x(n + shift), y(n + 2 * shift);
      x.tail(n) = a, y.tail(n) = b;
      CHECK(dot_by_packs(x.data() + shift, y.data() + 2 * shift, n) == product);
    }
  }
}

TEMPLATE_TEST_CASE("whether all entries of a row are finite", "[core]", NPRF_TEST_SCALARS) {
  using Limits = std::numeric_limits<TestType>;
  CHECK(all_finite<TestType>(nullptr, 0));
  for (const Index d : {1, 3, 16, 37})
    for (Index at = 0; at < d; ++at) {
      Vector<TestType> x = Vector<TestType>::Constant(d, Limits::max());
      x[at] = Limits::denorm_min();
      CHECK(all_finite(x.data(), d));
      for (const TestType bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        x[at] = bad;
        CHECK_FALSE(all_finite(x.data(), d));
        CHECK(all_finite(x.data(), at));
      }
    }
}

TEMPLATE_TEST_CASE("larger ignores a NaN, and larger_or_nan propagates it", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Vector<T> a = normal_vector<T>(W<T>, 1);
  const auto A = Pack<T>::load(a.data());
  for (Index at = 0; at < W<T>; ++at) {
    Vector<T> b = Vector<T>::Constant(W<T>, -10);
    b[at] = std::numeric_limits<T>::quiet_NaN();
    const auto B = Pack<T>::load(b.data());
    CHECK((scalars(larger(A, B)) == a && scalars(larger(B, A)) == a));
    for (const auto& or_nan : {larger_or_nan(A, B), larger_or_nan(B, A)}) {
      CHECK(std::isnan(or_nan.largest_or_nan()));
      for (Index k = 0; k < W<T>; ++k) CHECK((k == at ? std::isnan(scalars(or_nan)[k]) : scalars(or_nan)[k] == a[k]));
    }
  }
}

TEMPLATE_TEST_CASE("a non-finite number times the weight 0 is 0, and times another weight non-finite", "[core]",
                   NPRF_TEST_SCALARS) {
  constexpr TestType infinity = std::numeric_limits<TestType>::infinity();
  for (const TestType x : {infinity, -infinity, std::numeric_limits<TestType>::quiet_NaN(), TestType(3)})
    for (const TestType zero : {TestType(0), -TestType(0)}) {
      Vector<TestType> c = Vector<TestType>::Constant(W<TestType>, 2);
      c[W<TestType> - 1] = zero;
      const Vector<TestType> y = scalars(weighted(Pack<TestType>::all(x), Pack<TestType>::load(c.data())));
      CHECK(y[W<TestType> - 1] == 0);
      for (Index k = 0; k + 1 < W<TestType>; ++k) CHECK((y[k] == 2 * x || (std::isnan(x) && std::isnan(y[k]))));
    }
}

TEMPLATE_TEST_CASE("loads and stores of the first scalars of a pack access no others", "[core]", NPRF_TEST_SCALARS) {
  const Vector<TestType> from = normal_vector<TestType>(W<TestType>, 1);
  for (Index count = 0; count <= 2 * W<TestType>; ++count) {
    const Index some = std::min(count, W<TestType>);
    const std::vector<TestType> exactly(from.data(), from.data() + some);  // a sanitizer detects reads beyond it
    const auto pack = Pack<TestType>::load(exactly.data(), count);
    CHECK(scalars(pack).head(some) == from.head(some));
    CHECK(scalars(pack).tail(W<TestType> - some).isZero(0));
    Vector<TestType> to = Vector<TestType>::Constant(W<TestType> + 1, 17);
    Pack<TestType>::load(from.data()).store(to.data(), count);
    CHECK(to.head(some) == from.head(some));
    CHECK((to.tail(W<TestType> + 1 - some).array() == 17).all());
  }
}

TEMPLATE_TEST_CASE("the largest scalar of a pack ignores NaN unless all are NaN", "[core]", NPRF_TEST_SCALARS) {
  constexpr TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  const auto number = Pack<TestType>::all(-3), none = Pack<TestType>::all(nan);
  CHECK(scalars(larger(number, none)) == scalars(number));
  CHECK(scalars(larger(none, number)) == scalars(number));
  CHECK(std::isnan(none.largest()));
  for (Index k = 0; k < W<TestType>; ++k) {
    Vector<TestType> x = Vector<TestType>::Constant(W<TestType>, nan);
    x[k] = -3;
    CHECK(Pack<TestType>::load(x.data()).largest() == -3);
  }
}

TEMPLATE_TEST_CASE("exp of a pack is exp of its scalars, and 0 where that is below the normal numbers", "[core]",
                   NPRF_TEST_SCALARS) {
  const double lowest = std::log(static_cast<double>(std::numeric_limits<TestType>::min()));
  for (double x = lowest + 0.5; x < 80; x += 0.37) {
    const TestType exact = static_cast<TestType>(x);
    const double expected = std::exp(static_cast<double>(exact));
    const Vector<TestType> y = scalars(exp(Pack<TestType>::all(exact)));
    CHECK(std::abs(static_cast<double>(y[0]) / expected - 1) <= 4 * epsilon<TestType>);
    CHECK(y == Vector<TestType>::Constant(W<TestType>, y[0]));
  }
  for (const double x : {lowest - 0.5, lowest - 5, 10 * lowest, -std::numeric_limits<double>::infinity()})
    CHECK(scalars(exp(Pack<TestType>::all(static_cast<TestType>(x)))).isZero(0));
  CHECK(std::isnan(scalars(exp(Pack<TestType>::all(std::numeric_limits<TestType>::quiet_NaN())))[0]));
  CHECK(scalars(exp(Pack<TestType>::all(0))) == Vector<TestType>::Ones(W<TestType>));
}

TEMPLATE_TEST_CASE("packs_for is the smallest sufficient number of packs", "[core]", NPRF_TEST_SCALARS) {
  for (Index n = 0; n < 5 * W<TestType>; ++n) {
    const Index packs = packs_for<TestType>(n);
    CHECK((packs * W<TestType> >= n && packs * W<TestType> < n + W<TestType>));
  }
}

TEMPLATE_TEST_CASE("transpose_square transposes a square of packs", "[core]", NPRF_TEST_SCALARS) {
  const Index size = W<TestType>;
  const Matrix<TestType> from = normal<TestType>(size, size + 3, 1);
  Matrix<TestType> to = Matrix<TestType>::Constant(size, size + 5, 17);
  transpose_square(&from(0, 2), from.outerStride(), &to(0, 1), to.outerStride());
  CHECK(to.middleCols(1, size) == from.middleCols(2, size).transpose());
  CHECK((to.array() == 17).count() == 5 * size);
}

}  // namespace nprf::test::core_pack
