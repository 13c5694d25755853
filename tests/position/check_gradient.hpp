// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "nprf/position/position.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// Checks the gradient of a position. The bias is linear in the parameters, so sum_l db[l] b[l] = <gradient,
/// parameters> for every range of lags. An empty db gives a gradient of zero.
template <LearnedPosition P>
void check_gradient(const P& position, const Vector<double>& parameters) {
  const Index first = -40;
  Vector<double> db(90);
  for (Index l = 0; l < db.size(); ++l) db[l] = std::cos(1.7 * static_cast<double>(l));
  Matrix<double> gradient = Matrix<double>::Constant(2, 3, 17);  // the previous contents must not matter
  position.gradient(first, std::span<const double>(db.data(), static_cast<std::size_t>(db.size())), gradient);
  REQUIRE(gradient.rows() == parameters.size());
  REQUIRE(gradient.cols() == 1);
  double sum = 0;
  for (Index l = 0; l < db.size(); ++l) sum += db[l] * position.bias()[first + l];
  CHECK(std::abs(gradient.col(0).dot(parameters) - sum) <= 90 * std::numeric_limits<double>::epsilon() * 10 * 90);

  Matrix<double> none = gradient;
  position.gradient(first, {}, none);
  CHECK(none.rows() == parameters.size());
  CHECK(none.cols() == 1);
  CHECK(none.isZero(0));
}

}  // namespace nprf::test
