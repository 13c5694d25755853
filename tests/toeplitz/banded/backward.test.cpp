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

// The shares of the band and of the tails, or of the tails alone.
template <class T>
struct ByParts {
  toeplitz::BandDecomposition<T> weights;
  bool band;

  void gradients(const toeplitz::Factors<T>& x, const MatrixView<T>& G, toeplitz::GradientRefs<T> out,
                 const toeplitz::GradientSizes<T>&, const Team& team) const {
    out.set_zero();
    const toeplitz::BandedBackward<T> gradients(weights, x, G);
    if (band) gradients.add_band(out, team);
    gradients.add_tail(weights.before, out, team);
    gradients.add_tail(weights.after, out, team);
  }
};

auto make(bool band = true) {
  return [=]<class T>(LagWeightsView<T> c, const ProductShape& span, const Team& team) {
    return ByParts<T>{toeplitz::BandDecomposition<T>(c, span, team.workspace()), band};
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

TEMPLATE_TEST_CASE("the gradients of two lags of a tail have the moments of all of its lags", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const NamedBias& bias : some_biases()) {
    InSlots<T> x(300, 260, Slots{300}, Slots{260}, 3, 2);
    x.c = weights_of<T>(bias, 300, 260);
    const toeplitz::BandDecomposition<T> parts(x.c.view(), x.span, workspace);
    const Vector<T> dc = x.gradients(make(false), team).dc;
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
