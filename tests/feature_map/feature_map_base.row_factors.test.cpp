// SPDX-License-Identifier: MIT
#include "nprf/feature_map/feature_map_base_definition.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_row_factors {

TEMPLATE_TEST_CASE("rows are scaled to the largest finite factor", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  auto log_factors = workspace.vector<T>(4);
  log_factors << T(-3), T(2), T(0), -std::numeric_limits<T>::infinity();
  const Matrix<T> phi = normal<T>(4, 5, 1);
  Matrix<T> scaled = phi;
  CHECK(scale_to_largest<T>(log_factors, scaled, team) == 2);
  for (Index j = 0; j < 4; ++j) {
    const T factor = std::exp(log_factors[j] - 2);
    CHECK(worst_ratio(scaled.row(j), factor * phi.row(j), 2 * epsilon<T> * 4) <= 1);
  }
  CHECK((scaled.row(3).array() == 0).all());
}

TEST_CASE("without a finite factor rows are scaled to 1", "[feature_map]") {
  Workspace workspace;
  const Team team(workspace);
  auto none = workspace.vector<double>(0), one = workspace.vector<double>(1);
  Matrix<double> empty(0, 3), phi = Matrix<double>::Ones(1, 3);
  CHECK(scale_to_largest<double>(none, empty, team) == 0);
  one[0] = -std::numeric_limits<double>::infinity();
  CHECK(scale_to_largest<double>(one, phi, team) == 0);
  CHECK((phi.array() == 0).all());
}

}  // namespace nprf::test::feature_map_row_factors
