// SPDX-License-Identifier: MIT
#include "nprf/core/pack.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

using namespace nprf;
using namespace nprf::test;

namespace {

template <class T>
constexpr Index W = Pack<T>::size;

// one result for each scalar of a pack
template <class T>
Vector<T> scalars(const Pack<T>& pack) {
  Vector<T> x(W<T>);
  pack.store(x.data());
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("a pack is loaded from any address, and stored to any, and nothing beside it", "[core]", float,
                   double) {
  const Vector<TestType> from = normal_vector<TestType>(3 * W<TestType>, 1);
  for (Index shift = 0; shift <= W<TestType>; ++shift) {
    Vector<TestType> to = Vector<TestType>::Constant(3 * W<TestType>, 17);
    Pack<TestType>::load(&from[shift]).store(&to[shift + 1]);
    CHECK(to.segment(shift + 1, W<TestType>) == from.segment(shift, W<TestType>));
    CHECK((to.array() == 17).count() == 2 * W<TestType>);
  }
  CHECK(scalars(Pack<TestType>::all(3)) == Vector<TestType>::Constant(W<TestType>, 3));
}

TEMPLATE_TEST_CASE("packs add and multiply scalar by scalar", "[core]", float, double) {
  const Vector<TestType> a = normal_vector<TestType>(W<TestType>, 1), b = normal_vector<TestType>(W<TestType>, 2),
                         c = normal_vector<TestType>(W<TestType>, 3);
  const auto A = Pack<TestType>::load(a.data()), B = Pack<TestType>::load(b.data()), C = Pack<TestType>::load(c.data());
  CHECK(scalars(A + B) == a + b);
  CHECK(scalars(A * B) == a.cwiseProduct(b));
  CHECK(worst_ratio(scalars(multiply_add(A, B, C)), a.cwiseProduct(b) + c, 8 * epsilon<TestType>) <= 1);
  CHECK(std::abs(A.sum() - a.sum()) <= 8 * epsilon<TestType> * a.cwiseAbs().sum());
}

TEMPLATE_TEST_CASE("a weight of 0 hides what is not finite, and no other weight does", "[core]", float, double) {
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

TEMPLATE_TEST_CASE("the packs for some scalars hold them, and no pack is empty", "[core]", float, double) {
  for (Index n = 0; n < 5 * W<TestType>; ++n) {
    const Index packs = packs_for<TestType>(n);
    CHECK((packs * W<TestType> >= n && packs * W<TestType> < n + W<TestType>));
  }
}

TEMPLATE_TEST_CASE("a square of packs is transposed", "[core]", float, double) {
  const Index size = W<TestType>;
  const Matrix<TestType> from = normal<TestType>(size, size + 3, 1);
  Matrix<TestType> to = Matrix<TestType>::Constant(size, size + 5, 17);
  transpose_square(&from(0, 2), from.outerStride(), &to(0, 1), to.outerStride());
  CHECK(to.middleCols(1, size) == from.middleCols(2, size).transpose());
  CHECK((to.array() == 17).count() == 5 * size);
}
