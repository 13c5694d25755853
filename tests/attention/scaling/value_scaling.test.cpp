// SPDX-License-Identifier: MIT
#include "nprf/attention/scaling/value_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_scaling_value_scaling {

TEMPLATE_TEST_CASE("the maximum of a row is over its finite entries", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  for (const Index d : {1, 3, 16, 37})
    for (Index at = 0; at < d; ++at) {
      Vector<T> x = Vector<T>::Zero(d);
      const auto is = [&](T largest, bool is_finite) {
        const RowMax<T> max = row_max(x.data(), d);
        return max.largest == largest && max.is_finite == is_finite;
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
  CHECK((row_max<T>(nullptr, 0).largest == 0 && row_max<T>(nullptr, 0).is_finite));
}

TEMPLATE_TEST_CASE("a scale is the power of two above a value, and 1 for 0", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(scale_above(T(5)) == 8);
  CHECK(scale_above(T(0)) == 1);
}

TEMPLATE_TEST_CASE("the lossless scale is 1 if the ratio of values is too large", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const T least = Limits::min() / Limits::epsilon();
  const auto scale = [](std::initializer_list<T> sizes) { return lossless_scale<T>({sizes.begin(), sizes.end()}); };
  CHECK(scale({}) == 1);
  CHECK(scale({0, 0}) == 1);
  CHECK(scale({0, 3, 100}) == 128);
  CHECK(scale({least * 128, 100, 0}) == 128);
  CHECK(scale({100, least * 127}) == 1);
  CHECK(scale({Limits::denorm_min()}) == scale_above(Limits::denorm_min()));
}

TEMPLATE_TEST_CASE("only extreme values are divided by a scale", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const T size : {T(1), T(1e10), T(1e-10), T(0)}) CHECK(extreme_scale(size) == 1);
  const Matrix<T> v = normal<T>(5, 3, 1);
  CHECK(divided_by_scale<T>(v, T(1), team).data() == v.data());
  for (const T size : {max_scale_ratio<T> * T(16), 1 / max_scale_ratio<T> / T(16)}) {
    const Matrix<T> extreme = size * v;
    const T largest = extreme.cwiseAbs().maxCoeff(), scale = extreme_scale(largest);
    CHECK(scale == scale_above(largest));
    const Matrix<T> scaled = divided_by_scale<T>(extreme, scale, team);
    CHECK(scaled * scale == extreme);
    CHECK((scaled.cwiseAbs().maxCoeff() <= 1 && scaled.cwiseAbs().maxCoeff() >= T(0.5)));
  }
}

}  // namespace nprf::test::attention_scaling_value_scaling
