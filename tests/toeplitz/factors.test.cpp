// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/factors.hpp"

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_factors {

using toeplitz::Factors;

TEST_CASE("factors refer to the caller's matrices, copies of them too", "[toeplitz]") {
  const Matrix<float> A = normal<float>(3, 5, 1), B = normal<float>(7, 5, 2), U = normal<float>(7, 2, 3);
  const auto x = Factors<float>::without_gaps(A, B, U);
  CHECK((x.queries.slots[2] == 2 && x.keys.slots[6] == 6 && x.queries.outside + x.keys.outside == 0));
  const auto copy = x;
  for (const auto& each : {x, copy})
    CHECK((each.A.data() == A.data() && each.B.data() == B.data() && each.U.data() == U.data()));
  const Matrix<float> ones = Matrix<float>::Ones(7, 1);
  const auto other = copy.with_values(ones);
  CHECK((other.A.data() == A.data() && other.B.data() == B.data() && other.U.data() == ones.data()));
}

TEST_CASE("factors in slots leave out the tokens that have no slot", "[toeplitz]") {
  const Matrix<float> A = normal<float>(5, 2, 1), B = normal<float>(4, 2, 2), U = normal<float>(4, 3, 3);
  const Index at[] = {3, 8};
  const Vector<double> log_scales = Vector<double>::Zero(4);
  const Factors<float> x{A, B, U, Placement({3}, 2), Placement({2, 0, at}, 2), log_scales.data()};
  const auto inner = x.in_slots();
  CHECK((inner.A.rows() == 3 && inner.A.data() == &A(2, 0)));
  CHECK((inner.B.rows() == 2 && inner.B.data() == &B(2, 0)));
  CHECK((inner.U.rows() == 2 && inner.U.data() == &U(2, 0)));
  CHECK((inner.queries.count() == 3 && inner.keys.count() == 2 && inner.keys.slots[1] == 8));
  CHECK(inner.key_log_scales == log_scales.data() + 2);
  CHECK(Factors<float>::without_gaps(A, B, U).in_slots().key_log_scales == nullptr);
}

}  // namespace nprf::test::toeplitz_factors
