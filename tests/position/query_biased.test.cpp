// SPDX-License-Identifier: MIT
#include "nprf/position/query_biased.hpp"

#include <limits>

#include "nprf/position/kerple.hpp"
#include "nprf/position/position_view.hpp"
#include "nprf/position/t5.hpp"
#include "position/check_gradient.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_query_biased {

TEST_CASE("a position with vectors of lags is otherwise the same", "[position]") {
  const Vector<double> weights = normal<double>(1, 32, 1).row(0);
  const Matrix<double> R = normal<double>(3, 8, 2);
  const T5Position<double> t5(weights, Direction::causal);
  const QueryBiased position(t5, R);
  for (Index lag = -200; lag <= 0; ++lag) CHECK(position.bias()[lag] == t5.bias()[lag]);
  check_gradient(position, weights);
  check_position(position, Direction::causal);
  check_invalid([&] { check_position(position, Direction::bidirectional); }, {"built for causal"});
  CHECK(!PositionView<double>(position).is_smooth());
  CHECK(PositionView<double>(QueryBiased(KerpleLogPosition<double>({1, 1}, 50), R)).is_smooth());
}

TEST_CASE("a view finds vectors of lags where there are some", "[position]") {
  const Matrix<float> R = normal<float>(3, 8, 2);
  const NoPosition<float> plain;
  const QueryBiased position(plain, R), none(plain, Matrix<float>{});
  const PositionView<float> view(position);
  CHECK(view.lag_vectors() == &position.lag_vectors());
  CHECK(*view.lag_vectors() == R);
  CHECK(view.rank() == 3);
  for (const PositionView<float>& without : {PositionView<float>(none), PositionView<float>(plain)}) {
    CHECK(without.lag_vectors() == nullptr);
    CHECK(without.rank() == 0);
  }
}

TEST_CASE("vectors of lags are finite", "[position]") {
  for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Matrix<float> R = normal<float>(3, 8, 2);
    R(1, 2) = x;
    check_invalid([&] { QueryBiased(NoPosition<float>(), R); }, {"lag_vectors: expected finite numbers"});
  }
}

}  // namespace nprf::test::position_query_biased
