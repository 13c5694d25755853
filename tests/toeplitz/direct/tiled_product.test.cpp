// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/tiled_product.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_tiled_product {

namespace {

// Some queries, so many at a time, and some keys in runs of any length.
struct Cut {
  Index rows, run;
  Index i_begin = 0, i_end = 1000, j_begin = 0, j_end = 1000;
};

// weights of some keys alone: the others are left out, whatever their weights
template <class T>
class SomeKeys final : public toeplitz::TileWeights<T> {
 public:
  SomeKeys(const toeplitz::ToeplitzWeights<T>& all, Index begin, Index end) : m_all(all), m_begin(begin), m_end(end) {}

  const toeplitz::ToeplitzWeights<T>& all() const { return m_all; }

  void set(const toeplitz::PairBlock& of, toeplitz::WeightBlock<T>& c) const override { m_all.set(of, c); }
  toeplitz::RowRange keys(Index, Index, Index) const override { return {m_begin, m_end}; }
  Index chunk_origin(Index) const override { return m_begin; }

 private:
  toeplitz::ToeplitzWeights<T> m_all;
  Index m_begin, m_end;
};

// A product and its gradients by such tiles.
template <class T>
struct ByTiles {
  LagWeightsView<T> c;
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
      for (const Index last : {begin, end})
        toeplitz::TiledProduct<T>(x, SomeKeys<T>(weights(x), begin, last))
            .add(i, Y.middleRows(i, rows), tile_sums, team.workspace());
    });
  }
  void gradients(const toeplitz::Factors<T>& x, const MatrixView<T>& G, toeplitz::GradientRefs<T> out,
                 const toeplitz::GradientSizes<T>&, const Team& team) const {
    out.set_zero();
    const toeplitz::ToeplitzWeights<T> of = weights(x);
    for_each(x, [&](Index i, Index rows, Index begin, Index end) {
      const Workspace::Scope scope(team.workspace());
      const Index first = x.keys.slots[begin] - x.queries.slots[i + rows - 1];
      const auto add_dc = [&](const toeplitz::PairRow<T>& pairs) {
        if (with_dc) of.add_gradient(pairs, out.dc.data() + first - c.first, first);
      };
      toeplitz::BackwardTile<T> tile(x, G, of, team.workspace());
      tile.set_queries({i, i + rows});
      tile.add({end, end}, out, add_dc);  // no keys, nothing to add
      tile.add({begin, end}, out, add_dc);
    });
  }
  toeplitz::ToeplitzWeights<T> weights(const toeplitz::Factors<T>& x) const { return {x, c, {c.first, c.last()}}; }
};

auto make(Cut cut, bool with_dc = true) {
  return [=]<class T>(LagWeightsView<T> c, const ProductShape& span, const Team& team) {
    return ByTiles<T>{toeplitz::tabulate(c, span, team.workspace()), cut, with_dc};
  };
}

}  // namespace

TEMPLATE_TEST_CASE("tiles of queries and runs of keys, short or long, add up to the product and its gradients",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  const auto check = [&](const InSlots<TestType>& x) {
    for (const Index rows : {1, 5, 6, 13, 96})
      for (const Index run : {1, 7, 16, 63, 64, 131, 1000}) {
        INFO(x.name() << ", " << rows << " queries, runs of " << run);
        CHECK(x.error(Engine::direct, x.contract(make({rows, run}), team)) <= 1);
        CHECK(x.error(Engine::direct, x.contract_with_ones(make({rows, run}), team)) <= 1);
        CHECK(x.error(Engine::direct, x.gradients(make({rows, run}), team)) <= 1);
      }
  };
  check({1, 1, Slots{1}, Slots{1}, 1, 1});
  check({1, 211, Slots{1}, Slots{211}, 2, 3});
  check({97, 1, Slots{97}, Slots{1}, 3, 2});
  for (const Index p : {1, 4, 9, 16, 33}) check({60, 70, Slots{60}, Slots{70}, 5, p});
  for (const Index r : {1, 8, 17}) check({60, 70, Slots{50, 3}, Slots{64, 6}, r, 3});
  check({101, 307, Slots{90, 5}, Slots{280, 20}, 5, 9});
  check({103, 211, random_slots(103, 0.6, 1), random_slots(211, 0.7, 2), 3, 2});
  check({90, 100, random_slots(90, 0.6, 1), all_rows(100), 4, 10});
  // weights for a few lags only: most blocks have none, or some in one row
  for (const Index lag : {-60, -1, 0, 30}) {
    InSlots<TestType> few(90, 100, Slots{90}, Slots{100}, 4, 10);
    const Vector<TestType> kept = few.c.values.segment(lag + 89, 3);
    few.c.values.setZero();
    few.c.values.segment(lag + 89, 3) = kept;
    check(few);
  }
}

TEST_CASE("a tile reads and changes only its queries and its run of keys", "[toeplitz]") {
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

TEST_CASE("gradients over a range of keys are those of these keys alone", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n_q = 250, n_k = 400;  // several tiles, and more than one block of each
  for (const auto& [begin, end] : {std::pair<Index, Index>{0, 400}, {0, 96}, {95, 97}, {17, 333}, {50, 50}}) {
    INFO("keys " << begin << " to " << end);
    const auto make_some = [&, begin = begin, end = end](LagWeightsView<double> c, const ProductShape&, const Team&) {
      struct Some {
        LagWeightsView<double> c;
        Index begin, end;
        void gradients(const toeplitz::Factors<double>& x, const MatrixView<double>& G,
                       toeplitz::GradientRefs<double> out, const toeplitz::GradientSizes<double>&,
                       const Team& of) const {
          out.set_zero();
          const SomeKeys<double> keys({x, c, {c.first, c.last()}}, begin, end);
          const auto dc = toeplitz::TiledProduct<double>(x, keys).add_gradients(
              G, out, c.size, of, [&](const toeplitz::PairRow<double>& pairs, double* share) {
                keys.all().add_gradient(pairs, share, c.first);
              });
          out.dc = dc.colwise().sum().transpose();
        }
      };
      return Some{c, begin, end};
    };
    const InSlots<double> x(n_q, n_k, Slots{n_q}, Slots{n_k}, 3, 2);
    InSlots<double> part(n_q, n_k, Slots{n_q}, Slots{n_k}, 3, 2);  // the same with zeros for all other keys
    for (Index j = 0; j < n_k; ++j)
      if (j < begin || j >= end) part.B.row(j).setZero(), part.U.row(j).setZero();
    const auto d = x.gradients(make_some, team);
    CHECK(part.error(Engine::direct, d) <= 1);
    CHECK((d.dB.topRows(begin).isZero(0) && d.dB.bottomRows(n_k - end).isZero(0)));
  }
}

}  // namespace nprf::test::toeplitz_direct_tiled_product
