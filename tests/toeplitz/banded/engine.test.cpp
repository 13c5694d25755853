// SPDX-License-Identifier: MIT

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/banded/banded_error.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_banded_engine {

namespace {

constexpr auto make_banded = make_product(Engine::banded);
constexpr auto make_with_equal_ends = []<class T>(LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
  return make_banded(lags.with_equal_ends(), span, team);
};

template <class T>
void check(const InSlots<T>& x, const Team& team, Index rows = 40) {
  CHECK(banded_error(x, x.contract(make_banded, team), rows) <= 1);
  CHECK(banded_error(x, x.contract_with_ones(make_banded, team), rows) <= 1);
  CHECK(banded_error(x, x.gradients(make_banded, team), rows) <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("the banded engine computes the product and its gradients for all kinds of tails", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  std::vector<std::pair<Index, Index>> sizes{{1, 257}, {257, 1}, {33, 257}, {257, 33}, {130, 499}, {499, 130}};
  for (const Index n : {1, 2, 3, 29, 30, 31, 61, 150, 257, 500}) sizes.push_back({n, n});  // tiles of 30
  for (const auto& [n_q, n_k] : sizes)
    for (const NamedBias& bias : biases()) {
      InSlots<T> x(n_q, n_k, Slots{n_q}, Slots{n_k}, 2, 3);
      x.c = weights_of<T>(bias, n_q, n_k);
      INFO(bias.name << ", " << x.name());
      check(x, team);
    }
}

TEMPLATE_TEST_CASE("the banded engine: empty slots are like tokens of zeros", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(3);
  const Team team(workspaces);
  std::vector<NamedBias> some = biases();
  std::erase_if(some, [k = 0](const NamedBias&) mutable { return k++ % 3 != 0; });
  with_gaps<T>([&](InSlots<T>&& x) {
    for (const NamedBias& bias : some) {
      x.c = weights_of<T>(bias, x.span.n_q, x.span.n_k);
      INFO(bias.name << ", " << x.name());
      check(x, team, 10);
    }
  });
}

TEST_CASE("the banded engine: a tail that does not extend to the farthest lag is part of the band", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const LagRange range : {LagRange{-50, 400}, LagRange{-400, 60}, LagRange{-50, 60}, LagRange{10, 400}}) {
    InSlots<double> x(300, 310, Slots{300}, Slots{310}, 2, 3);
    x.c = exp_weights(random_bias(-3, 7, -0.01, 0), range);
    INFO("lags " << range.first << " to " << range.last);
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    check(x, team);
  }
}

TEST_CASE("the banded engine: with one-sided weights later tokens change no bit of earlier rows", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 300, now = 137;
  for (const double slope : {0.0, -0.1}) {
    InSlots<double> x(n, n, Slots{n}, Slots{n}, 3, 2);
    x.c = weights_of<double>({"", random_bias(-9, 10, slope, slope), 0, Direction::causal}, n, n);
    const Matrix<double> before = x.contract(make_banded, team);
    x.B.bottomRows(n - now) *= 1e20;
    x.U.bottomRows(n - now) *= -1e20;
    const Matrix<double> after = x.contract(make_banded, team);
    CHECK(same_bits<double>(after.topRows(now), before.topRows(now)));
    CHECK(!same_bits<double>(after.middleRows(now, 1), before.middleRows(now, 1)));
  }
}

TEST_CASE("the banded engine: rounding errors are per row", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 260;
  for (const double slope : {0.0, -0.5})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      InSlots<double> x(n, n, Slots{n}, Slots{n}, 3, 2);
      x.c = weights_of<double>({"", random_bias(-3, 7, slope, slope), 0, direction}, n, n);
      for (Index i = 0; i < n; ++i) x.A.row(i) *= std::pow(10., static_cast<double>(i % 9) * 25 - 100);
      // each key is e times the one before, and so are the sums
      for (Index j = 0; j < n; ++j) x.B.row(j) *= std::exp(static_cast<double>(j));
      CHECK(banded_error(x, x.contract(make_banded, team), n) <= 1);
    }
}

TEMPLATE_TEST_CASE("the banded engine: sums over several windows of tiles", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const NamedBias& bias :
       {NamedBias{"clipped", random_bias(-30, 70, 0, 0)}, NamedBias{"ALiBi", random_bias(0, 1, -0.003, -0.003)},
        NamedBias{"clipped and falling", random_bias(-3, 9, 0, -0.05)}}) {
    INFO(bias.name);
    // so many features that a window has few tiles, and so many tokens that there are more
    InSlots<T> wide(1300, 1250, Slots{1300}, Slots{1250}, 130, 65);
    wide.c = weights_of<T>(bias, 1300, 1250);
    check(wide, team, 9);
    InSlots<T> sparse(2900, 3300, random_slots(2900, 0.5, 1), random_slots(3300, 0.4, 2), 130, 65);
    sparse.c = weights_of<T>(bias, 2900, 3300);
    CHECK(banded_error(sparse, sparse.contract(make_banded, team), 60) <= 1);
  }
}

TEST_CASE("the banded engine: runs of equal weights as tails, as of T5", "[toeplitz]") {
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const auto t5 = t5_position<float>(normal_vector<float>(32, 3), direction);
    InSlots<float> x(700, 650, Slots{700}, Slots{650}, 5, 4);
    x.c = exp_weights(t5.bias(), reachable_lags(700, 650, 0, direction));
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    CHECK(x.error(Engine::direct, x.contract(make_with_equal_ends, team)) <= 1);
  }
}

TEMPLATE_TEST_CASE("the banded engine: equal weights for all lags need no band", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const auto& sizes : std::vector<std::pair<Index, Index>>{{1, 1}, {300, 7}, {1030, 2500}}) {
    const Index n_q = sizes.first, n_k = sizes.second;
    InSlots<T> x(n_q, n_k, random_slots(n_q, 0.9, 1), random_slots(n_k, 0.9, 2), 3, 2);
    x.c = {-(n_q - 1), Vector<T>::Constant(n_q + n_k - 1, T(0.7)), {n_q - 1, n_k - 1, 0.0, 0.0}};
    INFO(x.name());
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    toeplitz::Gradients<T> d = x.gradients(make_banded, team), all = d;
    all.dc.resize(0);
    const MatrixView<T> a = x.A, b = x.B, u = x.U, g = x.G;
    const Workspace::Scope scope(team.workspace());
    make_banded(x.c.view(), x.span, team)
        .gradients({a, b, u, x.queries, x.keys}, g, {all.dA, all.dB, all.dU, all.dc}, {}, team);
    const auto error = [&](const toeplitz::Gradients<T>& e) {
      const Matrix<T> A = spread(x.A, x.queries, n_q), B = spread(x.B, x.keys, n_k), U = spread(x.U, x.keys, n_k),
                      G = spread(x.G, x.queries, n_q);
      return std::max({product_error(Engine::direct, x.c, G, U, B, spread(e.dA, x.queries, n_q)),
                       product_error(Engine::direct, transposed(x.c), U, G, A, spread(e.dB, x.keys, n_k)),
                       product_error(Engine::direct, transposed(x.c), B, A, G, spread(e.dU, x.keys, n_k))});
    };
    CHECK(error(d) <= 1);
    CHECK(error(all) <= 1);
  }
}

TEMPLATE_TEST_CASE("the banded engine: no bit depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto check_bits = [](InSlots<T>&& x) {
    for (const NamedBias& bias :
         {NamedBias{"clipped", random_bias(-30, 70, 0, 0)}, NamedBias{"ALiBi", random_bias(0, 1, -0.003, -0.003)},
          NamedBias{"no position", {}}}) {
      x.c = weights_of<T>(bias, x.span.n_q, x.span.n_k);
      INFO(bias.name);
      check_thread_bits(x, make_banded);
    }
  };
  check_bits({90, 70, Slots{90}, Slots{70}, 3, 2});
  check_bits({600, 500, random_slots(600, 0.8, 1), random_slots(500, 0.7, 2), 9, 5});
  check_bits({2300, 2500, Slots{2300}, Slots{2500}, 130, 65});
}

TEST_CASE("the scratch memory of the banded engine is linear in the tokens, and reused", "[toeplitz]") {
  const auto peak = [](const NamedBias& bias, Index n) {
    Workspace workspace;
    const Team team(workspace);
    InSlots<float> x(n, n, Slots{n}, Slots{n}, 8, 9);
    x.c = weights_of<float>(bias, n, n);
    x.contract(make_banded, team);
    x.gradients(make_banded, team);
    const std::size_t allocated = workspace.allocated_bytes();
    x.contract(make_banded, team);
    x.gradients(make_banded, team);
    CHECK(workspace.allocated_bytes() == allocated);
    return static_cast<double>(workspace.peak_bytes());
  };
  for (const NamedBias& each :
       {NamedBias{"clipped", random_bias(-30, 70, 0, 0)}, NamedBias{"ALiBi", random_bias(0, 1, -0.003, -0.003)}}) {
    INFO(each.name);
    // besides the sums of a window: a table of 2 n weights, and some numbers for each tile and each window
    const double once = peak(each, 20000), twice = peak(each, 40000);
    CHECK(twice - once <= 20000 * (2 + 1) * sizeof(float));
  }
}

}  // namespace nprf::test::toeplitz_banded_engine
