// SPDX-License-Identifier: MIT

#include "nprf/attention/scaling/value_scaling.hpp"

#include <cmath>

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_scaling_scaled_values {

TEMPLATE_TEST_CASE("values are divided by a power of two only if they are extreme", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const Matrix<T> base = normal<T>(20, 5, 1);
  for (const T size : {T(1), std::sqrt(std::numeric_limits<T>::max()), std::numeric_limits<T>::min() * T(64)})
    for (const bool may_scale : {true, false}) {
      const Matrix<T> v = size * base;
      Vector<T> maxima = v.cwiseAbs().rowwise().maxCoeff();
      const Vector<T> given = maxima;
      const ScaledValues<T> values(v, VectorMap<T>(maxima.data(), maxima.size()), may_scale, team);
      CHECK((values.scale() != 1) == (may_scale && size != 1));
      CHECK(same_bits<T>(values.rows() * values.scale(), v));
      CHECK((values.rows().data() == v.data()) == (values.scale() == 1));  // no copy
      for (Index j = 0; j < 20; ++j) CHECK(values.maxima()[j] * values.scale() == given[j]);
      CHECK(values.largest() * values.scale() == given.maxCoeff());

      SavedSequence<T> saved;
      const T scale = values.save(saved, team);
      CHECK(saved.values.largest <= 1);
      CHECK(same_bits<T>(saved.values.U.leftCols(5) * scale, values.rows()));
      CHECK(saved.values.U.col(5) == Matrix<T>(Matrix<T>::Ones(20, 1)));
      CHECK(saved.values.exponent == std::ilogb(scale) + std::ilogb(values.scale()));
    }
}

TEST_CASE("there may be no values", "[attention]") {
  Workspace workspace;
  const Matrix<float> v(0, 3);
  Vector<float> maxima(0);
  const ScaledValues<float> values(v, VectorMap<float>(maxima.data(), 0), true, Team(workspace));
  CHECK((values.scale() == 1 && values.largest() == 0));
}

}  // namespace nprf::test::attention_scaling_scaled_values
