// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"

#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_toeplitz_weights {

TEST_CASE("a table has all lags that slots can reach, and zeros for lags without a weight", "[toeplitz]") {
  Workspace workspace;
  for (const LagRange range :
       {LagRange{-200, 300}, LagRange{-9, 14}, LagRange{-200, -60}, LagRange{0, -1}, LagRange{80, 300}}) {
    INFO("lags " << range.first << " to " << range.last);
    const LagWeights<double> c{range.first, normal_vector<double>(range.size(), 6)};
    const LagWeightsView<double> table = toeplitz::tabulate(c.view(), {90, 110, 2, 3}, workspace);
    CHECK((table.first == -89 && table.last() == 109));
    CHECK((table.tails.before == 0 && table.tails.after == 0));
    for (Index lag = -89; lag <= 109; ++lag) CHECK(table[lag] == c[lag]);
  }
}

TEMPLATE_TEST_CASE("the weights of a block are those of the lags, and zeros after the last key", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index rows = Block<T>::rows, pack = Pack<T>::size;
  const auto check = [&](const InSlots<T>& x) {
    Workspace scratch;
    const MatrixView<T> a = x.A, b = x.B, u = x.U;
    const toeplitz::Factors<T> factors{a, b, u, x.queries, x.keys};
    const toeplitz::ToeplitzWeights<T> weights(factors, x.c.view(), {});
    toeplitz::WeightBlock<T> block(4 * pack, scratch);
    for (const Index i : {Index{0}, x.queries.count - 2})
      for (const Index count : {Index{1}, pack - 1, pack, 3 * pack, 3 * pack + 1}) {
        const Index j0 = 2, packs = (count + pack - 1) / pack, of = std::min(rows, x.queries.count - i);
        weights.set({i, of, j0, count, packs}, block);
        for (Index k = 0; k < rows; ++k)
          for (Index j = 0; j < packs * pack; ++j) {
            const Index query = i + std::min(k, of - 1);
            const T expected = j < count ? x.c[x.keys[j0 + j] - x.queries[query]] : T(0);
            CHECK(block.row(k)[j] == expected);
          }
      }
  };
  check({60, 90, Slots{60}, Slots{90}, 1, 1});
  check({60, 90, Slots{50, 3}, Slots{80, 6}, 1, 1});
  check({60, 190, random_slots(60, 0.6, 1), random_slots(190, 0.7, 2), 1, 1});
}

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
