// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/tiled_product.hpp"

#include <algorithm>
#include <vector>

#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_backward_tile {

namespace {

template <class T>
using Tile = toeplitz::BackwardTile<T>;

// gradients by tiles of any size: so many queries and keys at a time
template <class T>
struct ByTiles {
  LagWeightsView<T> c;
  Index rows, keys;

  void gradients(const toeplitz::Factors<T>& x, const MatrixView<T>& G, toeplitz::GradientRefs<T> out,
                 const toeplitz::GradientSizes<T>&, const Team& team) const {
    out.set_zero();
    const toeplitz::ToeplitzWeights<T> weights{x, c, {c.first, c.last()}};
    Tile<T> tile(x, G, weights, team.workspace());
    const auto add_dc = [&](const toeplitz::PairRow<T>& pairs) { weights.add_gradient(pairs, &out.dc[0], c.first); };
    for (Index i = 0; i < x.queries.slots.count; i += rows) {
      tile.set_queries({i, std::min(i + rows, x.queries.slots.count)});
      for (Index j = 0; j < x.keys.slots.count; j += keys)
        tile.add({j, std::min(j + keys, x.keys.slots.count)}, out, add_dc);
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gradients by tiles of any size add up, with gaps and without", "[toeplitz]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  const Index most = Tile<TestType>::keys;
  const auto check = [&](const InSlots<TestType>& x) {
    for (const Index rows : {Index{1}, Index{5}, Index{6}, Index{13}, most})
      for (const Index keys : {Index{1}, Index{7}, Index{16}, most - 1, most, 2 * most + 3}) {
        INFO(x.name() << ", tiles of " << rows << " x " << keys);
        const auto make = [=](LagWeightsView<TestType> c, const ProductShape&, const Team&) {
          return ByTiles<TestType>{c, rows, keys};
        };
        CHECK(x.error(Engine::direct, x.gradients(make, team)) <= 1);
      }
  };
  for (const Index p : {1, 4, 9, 33}) check({110, 70, Slots{110}, Slots{70}, 5, p});
  for (const Index r : {1, 8, 17}) check({60, 120, Slots{50, 3}, Slots{104, 6}, r, 3});
  check({90, 100, random_slots(90, 0.6, 1), random_slots(100, 0.7, 2), 4, 10});
  check({90, 100, random_slots(90, 0.6, 1), all_rows(100), 9, 2});
}

}  // namespace nprf::test::toeplitz_direct_backward_tile
