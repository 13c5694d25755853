// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"

#include "support/catch.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_toeplitz_weights {

TEST_CASE("the keys of a tile are those between the first and the last slot that its queries reach", "[toeplitz]") {
  const auto check = [](const InSlots<double>& x) {
    const MatrixView<double> a = x.A, b = x.B, u = x.U;
    const toeplitz::Factors<double> factors{a, b, u, x.queries, x.keys};
    for (const LagRange range :
         {LagRange{-5, 9}, LagRange{3, 3}, LagRange{-200, 200}, LagRange{0, -1}, LagRange{150, 160}}) {
      const toeplitz::ToeplitzWeights<double> weights{factors, x.c.view(), range};
      for (const Index i0 : {Index{0}, Index{11}, x.queries.count - 7}) {
        const toeplitz::RowRange keys = weights.keys(i0, 7, 64);
        CHECK(keys.begin <= keys.end);
        for (Index j = 0; j < x.keys.count; ++j) {
          const bool is_reached =
              x.keys[j] >= x.queries[i0] + range.first && x.keys[j] <= x.queries[i0 + 6] + range.last;
          CHECK(is_reached == (keys.begin <= j && j < keys.end));
        }
      }
    }
  };
  check({60, 90, Slots{50, 3}, Slots{80, 6}, 1, 1});
  check({60, 90, random_slots(60, 0.6, 1), random_slots(90, 0.7, 2), 1, 1});
}

}  // namespace nprf::test::toeplitz_direct_toeplitz_weights
