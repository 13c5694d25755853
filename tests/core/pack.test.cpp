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

}  // namespace nprf::test::core_pack
