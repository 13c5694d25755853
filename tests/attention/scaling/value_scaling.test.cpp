// SPDX-License-Identifier: MIT
#include "nprf/attention/scaling/value_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_scaling_value_scaling {

TEMPLATE_TEST_CASE("a row's size is the largest of what is finite", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  for (const Index d : {1, 3, 16, 37})
    for (Index at = 0; at < d; ++at) {
      Vector<T> x = Vector<T>::Zero(d);
      const auto is = [&](T largest, bool is_finite) {
        const RowSize<T> size = row_size(x.data(), d);
        return size.largest == largest && size.is_finite == is_finite;
      };
      CHECK(is(0, true));
      x[at] = Limits::denorm_min();
      CHECK(is(Limits::denorm_min(), true));
      x[at] = -Limits::max();
      CHECK(is(Limits::max(), true));
      for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        x[at] = bad;
        CHECK(is(0, false));
        if (d > 1) {
          x[at == 0 ? 1 : 0] = T(-5);
          CHECK(is(5, false));
          x[at == 0 ? 1 : 0] = 0;
        }
      }
    }
  CHECK((row_size<T>(nullptr, 0).largest == 0 && row_size<T>(nullptr, 0).is_finite));
}

TEMPLATE_TEST_CASE("a unit is the power of two above, and of 0 it is 1", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(unit_above(T(5)) == 8);
  CHECK(unit_above(T(0)) == 1);
}

TEMPLATE_TEST_CASE("values that are too far apart for one unit have none", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const T least = Limits::min() / Limits::epsilon();
  const auto unit = [](std::initializer_list<T> sizes) {
    Vector<T> x(static_cast<Index>(sizes.size()));
    std::copy(sizes.begin(), sizes.end(), x.begin());
    return unit_that_keeps_digits<T>(x);
  };
  CHECK(unit({}) == 1);
  CHECK(unit({0, 0}) == 1);
  CHECK(unit({0, 3, 100}) == 128);
  CHECK(unit({least * 128, 100, 0}) == 128);
  CHECK(unit({100, least * 127}) == 1);
  CHECK(unit({Limits::denorm_min()}) == unit_above(Limits::denorm_min()));
}

TEMPLATE_TEST_CASE("values have a unit where they are extreme alone", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const T size : {T(1), T(1e10), T(1e-10), T(0)}) CHECK(extreme_unit(size) == 1);
  const Matrix<T> v = normal<T>(5, 3, 1);
  CHECK(in_units<T>(v, T(1), team).data() == v.data());
  for (const T size : {most_apart<T> * T(16), 1 / most_apart<T> / T(16)}) {
    const Matrix<T> extreme = size * v;
    const T largest = extreme.cwiseAbs().maxCoeff(), unit = extreme_unit(largest);
    CHECK(unit == unit_above(largest));
    const Matrix<T> scaled = in_units<T>(extreme, unit, team);
    CHECK(scaled * unit == extreme);
    CHECK((scaled.cwiseAbs().maxCoeff() <= 1 && scaled.cwiseAbs().maxCoeff() >= T(0.5)));
  }
}

}  // namespace nprf::test::attention_scaling_value_scaling
