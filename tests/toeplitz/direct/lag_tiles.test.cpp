// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/lag_tiles.hpp"

#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_lag_tiles {

namespace {

// Some queries, so many at a time, and some keys in runs of any length.
struct Cut {
  Index rows, run;
  Index i_begin = 0, i_end = 1000, j_begin = 0, j_end = 1000;
};

// A product and its gradients by such tiles. Each has dc from the first lag on that it meets, or none of it.
template <class T>
struct ByTiles {
  toeplitz::LagTiles<T> tiles;
  Cut cut;
  bool with_dc;

  template <class Use>
  void for_each(const toeplitz::Factors<T>& x, Use&& use) const {
    const Index i_end = std::min(cut.i_end, x.queries.slots.count), j_end = std::min(cut.j_end, x.keys.slots.count);
    for (Index i = cut.i_begin; i < i_end; i += cut.rows)
      for (Index j = cut.j_begin; j < j_end; j += cut.run)
        use(i, std::min(cut.rows, i_end - i), j, std::min(j + cut.run, j_end));
  }
  void contract(const toeplitz::Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    Y.setZero();
    if (sums) std::fill_n(sums, Y.rows(), T(0));
    for_each(x, [&](Index i, Index rows, Index begin, Index end) {
      T* tile_sums = sums ? sums + i : nullptr;
      tiles.add(x, i, begin, begin, Y.middleRows(i, rows), team.workspace(), tile_sums);  // no keys, nothing to add
      tiles.add(x, i, begin, end, Y.middleRows(i, rows), team.workspace(), tile_sums);
    });
  }
  void gradients(const toeplitz::Factors<T>& x, const MatrixView<T>& G, toeplitz::GradientRefs<T> out,
                 const toeplitz::GradientSizes<T>&, const Team& team) const {
    out.set_zero();
    for_each(x, [&](Index i, Index rows, Index begin, Index end) {
      const Index first = x.keys.slots[begin] - x.queries.slots[i + rows - 1];
      T* dc = with_dc ? out.dc.data() + first - tiles.lags().first : nullptr;
      tiles.add_gradients(x, G, i, rows, end, end, out, dc, first, team.workspace());
      tiles.add_gradients(x, G, i, rows, begin, end, out, dc, first, team.workspace());
    });
  }
};

auto make(Cut cut, bool with_dc = true) {
  return [=]<class T>(LagWeightsView<T> c, const ProductShape& span, const Team& team) {
    return ByTiles<T>{toeplitz::LagTiles<T>(c, span, team.workspace()), cut, with_dc};
  };
}

}  // namespace

TEMPLATE_TEST_CASE("tiles of queries and runs of keys, short ones and long, add up to the product and its gradients",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  const auto check = [&](const InSlots<TestType>& x) {
    for (const Index rows : {1, 7, 30, 96})
      for (const Index run : {13, 63, 64, 65, 97, 1000}) {
        INFO(x.name() << ", " << rows << " queries, runs of " << run);
        CHECK(x.error(Engine::direct, x.contract_with_ones(make({rows, run}), team)) <= 1);
        CHECK(x.error(Engine::direct, x.gradients(make({rows, run}), team)) <= 1);
      }
  };
  check({1, 1, Slots{1}, Slots{1}, 1, 1});
  check({1, 211, Slots{1}, Slots{211}, 2, 3});
  check({97, 1, Slots{97}, Slots{1}, 3, 2});
  check({101, 307, Slots{90, 5}, Slots{280, 20}, 5, 9});
  check({103, 211, random_slots(103, 0.6, 1), random_slots(211, 0.7, 2), 3, 2});
}

TEST_CASE("a tile reads and changes nothing but its own queries and its run of keys", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const Cut& cut : {Cut{23, 1000, 11, 34, 17, 183}, Cut{1, 1000, 89, 90, 0, 1}, Cut{96, 1000, 0, 90, 199, 200}}) {
    const InSlots<double> x(100, 230, Slots{90, 4}, Slots{200, 9}, 3, 2);
    InSlots<double> part(100, 230, Slots{90, 4}, Slots{200, 9}, 3, 2);  // the same with zeros for all others
    for (Index i = 0; i < 90; ++i)
      if (i < cut.i_begin || i >= cut.i_end) part.A.row(i).setZero(), part.G.row(i).setZero();
    for (Index j = 0; j < 200; ++j)
      if (j < cut.j_begin || j >= cut.j_end) part.B.row(j).setZero(), part.U.row(j).setZero();
    INFO("queries " << cut.i_begin << " to " << cut.i_end << ", keys " << cut.j_begin << " to " << cut.j_end);
    CHECK(part.error(Engine::direct, x.contract_with_ones(make(cut), team)) <= 1);
    CHECK(part.error(Engine::direct, x.gradients(make(cut), team)) <= 1);
  }
}

TEST_CASE("without dc the other gradients are the same, bit for bit", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const InSlots<double> x(100, 130, random_slots(100, 0.7, 1), random_slots(130, 0.8, 2), 3, 2);
  const auto with = x.gradients(make({30, 100}), team), without = x.gradients(make({30, 100}, false), team);
  CHECK((same_bits(with.dA, without.dA) && same_bits(with.dB, without.dB) && same_bits(with.dU, without.dU)));
  CHECK((without.dc.isZero(0) && !with.dc.isZero(0)));
}

TEST_CASE("tiles know all lags that there can be, and lags outside the weights' table weigh nothing", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const LagRange range :
       {LagRange{-200, 300}, LagRange{-9, 14}, LagRange{-200, -60}, LagRange{0, -1}, LagRange{80, 300}}) {
    InSlots<double> x(90, 110, Slots{90}, Slots{110}, 2, 3);
    x.c = {range.first, normal_vector<double>(range.size(), 6)};
    INFO("lags " << range.first << " to " << range.last);
    const LagRange all = toeplitz::LagTiles<double>(x.c.view(), x.span, workspace).lags();
    CHECK((all.first == -89 && all.last == 109));
    CHECK(x.error(Engine::direct, x.contract(make({30, 64}), team)) <= 1);
    CHECK(x.error(Engine::direct, x.gradients(make({30, 64}), team)) <= 1);
  }
}

}  // namespace nprf::test::toeplitz_direct_lag_tiles
