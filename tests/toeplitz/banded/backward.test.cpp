// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/backward.hpp"

#include <algorithm>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/banded/banded_error.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_banded_backward {

namespace {

// The shares of the band and of the tails, or one of them, added to a constant.
struct Parts {
  bool band = true, tails = true;
  double before = 0;
};

template <class T>
struct ByParts {
  toeplitz::BandDecomposition<T> weights;
  Parts parts;

  void gradients(const toeplitz::Factors<T>& x, const MatrixView<T>& G, toeplitz::GradientRefs<T> out,
                 const toeplitz::GradientSizes<T>&, const Team& team) const {
    const T before = static_cast<T>(parts.before);
    out.dA.setConstant(before), out.dB.setConstant(before), out.dU.setConstant(before), out.dc.setConstant(before);
    const toeplitz::BandedBackward<T> gradients(weights, x, G);
    if (parts.band) gradients.add_band(out, team);
    if (!parts.tails) return;
    gradients.add_tail(weights.before, out, team);
    gradients.add_tail(weights.after, out, team);
  }
};

auto make(Parts parts = {}) {
  return [=]<class T>(LagWeightsView<T> c, const ProductShape& span, const Team& team) {
    return ByParts<T>{toeplitz::BandDecomposition<T>(c, span, team.workspace()), parts};
  };
}

std::vector<NamedBias> some_biases() {
  return {{"clipped", random_bias(-3, 9, 0, 0)},
          {"falling", random_bias(-3, 9, -0.01, -0.2)},
          {"clipped before, nothing after", random_bias(-3, 4, 0, 0), 0, Direction::causal},
          {"rising before, falling after", random_bias(-3, 9, 0.01, -0.05)},
          {"no position", {}}};
}

}  // namespace

TEMPLATE_TEST_CASE("band and tails add up to all gradients", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const auto check = [&](InSlots<T>&& x) {
    for (const NamedBias& bias : some_biases()) {
      x.c = weights_of<T>(bias, x.span.n_q, x.span.n_k);
      INFO(bias.name << ", " << x.name());
      CHECK(banded_error(x, x.gradients(make(), Team(workspaces))) <= 1);
    }
  };
  for (const Index n : {1, 2, 29, 30, 31, 61, 499}) check({n, n, Slots{n}, Slots{n}, 3, 2});
  check({1, 307, Slots{1}, Slots{307}, 2, 3});
  check({307, 1, Slots{307}, Slots{1}, 2, 3});
  check({600, 500, random_slots(600, 0.6, 1), random_slots(500, 0.7, 2), 5, 9});
  check({600, 500, random_slots(600, 0.1, 1), std::vector<Index>(), 5, 9});
  check({600, 500, std::vector<Index>(), random_slots(500, 0.1, 2), 5, 9});
}

TEMPLATE_TEST_CASE("a tile of one query has each key either in a tail or in the band", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const NamedBias& bias : some_biases())
    for (const bool band : {true, false}) {
      InSlots<T> x(200, 300, {120}, random_slots(300, 0.8, 2), 3, 2);
      x.c = weights_of<T>(bias, 200, 300);
      const toeplitz::Gradients<T> d = x.gradients(make({band, !band}), team);
      const toeplitz::BandDecomposition<T> parts(x.c.view(), x.span, workspace);
      LagWeights<T> part = x.c;  // with zeros in the other part
      for (Index lag = part.first; lag <= part.last(); ++lag)
        if ((parts.band.first <= lag && lag <= parts.band.last) != band) part.values[lag - part.first] = 0;
      const LagWeights<T> part_t = transposed(part);
      const LagWeights<double> rounding = table_error(part), rounding_t = transposed(rounding);
      const auto in_q = [&](const Matrix<T>& X) { return spread(X, x.queries, 200); };
      const auto in_k = [&](const Matrix<T>& X) { return spread(X, x.keys, 300); };
      const Matrix<T> A = in_q(x.A), B = in_k(x.B), U = in_k(x.U), G = in_q(x.G);
      INFO(bias.name << (band ? ", the band" : ", the tails"));
      CHECK(rows_error(part, rounding, G, U, B, in_q(d.dA), all_rows(200)) <= 1);
      CHECK(rows_error(part_t, rounding_t, U, G, A, in_k(d.dB), all_rows(300)) <= 1);
      CHECK(rows_error(part_t, rounding_t, B, A, G, in_k(d.dU), all_rows(300)) <= 1);
    }
}

TEMPLATE_TEST_CASE("the gradients of two lags of a tail have the moments of all of its lags", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const NamedBias& bias : some_biases()) {
    InSlots<T> x(300, 260, Slots{300}, Slots{260}, 3, 2);
    x.c = weights_of<T>(bias, 300, 260);
    const toeplitz::BandDecomposition<T> parts(x.c.view(), x.span, workspace);
    const Vector<T> dc = x.gradients(make({false, true}), team).dc;
    Index before = 0, after = 0, others = 0;
    for (Index lag = -299; lag < 260; ++lag)
      if (dc[lag + 299] != 0)
        ++(parts.before.lags > 0 && lag <= parts.before.edge ? before
           : parts.after.lags > 0 && lag >= parts.after.edge ? after
                                                             : others);
    INFO(bias.name);
    CHECK(before == (parts.before.lags > 0 ? 2 : 0));
    CHECK(after == (parts.after.lags > 0 ? 2 : 0));
    CHECK(others == 0);
  }
}

TEST_CASE("the shares of band and tails are added, and do not depend on whether dc is requested", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const double end : {0.0, -1.0}) {  // whole numbers, and weights 1 and 1/2: all sums are exact
    InSlots<double> x(200, 190, random_slots(200, 0.7, 1), random_slots(190, 0.8, 2), 3, 2);
    for (Matrix<double>* each : {&x.A, &x.B, &x.U, &x.G}) *each = each->array().ceil();
    x.c = {-199, Vector<double>::Constant(389, 0.5), {190, 180, 0, 0}};
    x.c.values[199] = end;
    const auto from_zero = x.gradients(make(), team), from_one = x.gradients(make({true, true, 1}), team);
    CHECK(from_one.dA == (from_zero.dA.array() + 1).matrix());
    CHECK(from_one.dB == (from_zero.dB.array() + 1).matrix());
    CHECK(from_one.dU == (from_zero.dU.array() + 1).matrix());
    for (Index l = 190; l < 209; ++l) CHECK(from_one.dc[l] == from_zero.dc[l] + 1);  // between the tails
    toeplitz::Gradients<double> without = from_zero;
    without.dc.resize(0);
    const MatrixView<double> a = x.A, b = x.B, u = x.U, g = x.G;
    make()(x.c.view(), x.span, team)
        .gradients({a, b, u, x.queries, x.keys}, g, {without.dA, without.dB, without.dU, without.dc}, {}, team);
    CHECK((same_bits(without.dA, from_zero.dA) && same_bits(without.dB, from_zero.dB) &&
           same_bits(without.dU, from_zero.dU)));
  }
}

TEST_CASE("no bit of band and tails depends on the number of threads, however many queries share a key",
          "[toeplitz][threads]") {
  for (const Index width : {20, 300, 3000}) {
    InSlots<double> x(2500, 500, random_slots(2500, 0.7, 1), random_slots(500, 0.8, 2), 3, 2);
    x.c = weights_of<double>({"", random_bias(-width / 2, width, 0, -0.01)}, 2500, 500);
    toeplitz::Gradients<double> first({});
    with_team_sizes([&](const Team& team) {
      if (team.size() == 1) first = x.gradients(make(), team);
      INFO("a band of " << width << ", " << team.size() << " threads");
      CHECK(same_bits(x.gradients(make(), team), first));
    });
  }
}

TEMPLATE_TEST_CASE("the gradient of ALiBi's slope keeps its digits over long distances", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Index n = 1500;
  for (const double slope : {1e-3, 1e-2, 0.1, 1.0, 0.0})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      InSlots<T> x(n, n, Slots{n}, Slots{n}, 2, 3);
      x.c = exp_weights(AlibiPosition<T>(static_cast<T>(slope)).bias(), reachable_lags(n, n, 0, direction));
      const toeplitz::Gradients<T> d = x.gradients(make(), Team(workspace));
      INFO("slope " << slope << (direction == Direction::causal ? ", causal" : ""));
      CHECK(moments_error(x.c, table_error(x.c), x.A, x.B, x.U, x.G, d.dc) <= 1);
    }
}

}  // namespace nprf::test::toeplitz_banded_backward
