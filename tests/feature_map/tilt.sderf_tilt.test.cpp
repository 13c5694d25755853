// SPDX-License-Identifier: MIT

#include "nprf/feature_map/tilt.hpp"

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_sderf_tilt {

TEST_CASE("the axes of the tilt diagonalise the moments of all sums of a query and a key", "[feature_map]") {
  constexpr Index d = 5;
  Matrix<double> q = normal<double>(9, d, 1), k = normal<double>(7, d, 2);
  q.col(2).array() += 3;
  k.col(0) *= 4;
  Matrix<double> moment = Matrix<double>::Zero(d, d);
  for (Index i = 0; i < q.rows(); ++i)
    for (Index j = 0; j < k.rows(); ++j) {
      const Matrix<double> sum = q.row(i) + k.row(j);
      moment += sum.transpose() * sum / static_cast<double>(q.rows() * k.rows());
    }
  const Tilt tilt = sderf_tilt<double>(q, k);
  const double tolerance = 1e3 * epsilon<double>;
  CHECK((tilt.axes.transpose() * tilt.axes - Matrix<double>::Identity(d, d)).norm() <= tolerance);
  const Matrix<double> in_axes = tilt.axes.transpose() * moment * tilt.axes;
  for (Index l = 0; l < d; ++l) {
    CHECK(std::abs(tilt.a[l] - best_tilt(in_axes(l, l))) <= tolerance * std::abs(tilt.a[l]));
    for (Index m = 0; m < d; ++m)
      if (m != l) CHECK(std::abs(in_axes(l, m)) <= tolerance * moment.norm());
  }
  const Matrix<float> queries = q.cast<float>(), keys = k.cast<float>();
  CHECK((sderf_tilt<float>(queries, keys).a - tilt.a).norm() <= 1e-5 * tilt.a.norm());
}

}  // namespace nprf::test::feature_map_sderf_tilt
