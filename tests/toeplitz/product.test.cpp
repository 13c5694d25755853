// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/product.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/throws.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_product {

using toeplitz::require_available;

namespace {

Engine engine_of(Engine engine, const LagWeights<double>& c, const ProductShape& span) {
  Workspace workspace;
  return toeplitz::Product<double>(engine, c.view(), span, Team(workspace)).engine();
}

}  // namespace

TEST_CASE("a product by an engine that this build does not have is refused by name", "[toeplitz]") {
  CHECK_NOTHROW(require_available(Engine::automatic));
  for (const Engine engine : engines()) CHECK_NOTHROW(require_available(engine));
  CHECK_NOTHROW(require_available(Engine::recurrence));
  CHECK_NOTHROW(require_available(Engine::grid));
  if (NPRF_USE_FFTW) return;
  Workspace workspace;
  const LagWeights<double> c = random_weights<double>(5, 4, 4);
  check_invalid([] { require_available(Engine::fftw); }, {"engine:", "without FFTW", "fftw"});
  // for an empty product too
  for (const Index p : {3, 0})
    check_invalid(
        [&] {
          toeplitz::Product<double>(Engine::fftw, c.view(), {5, 4, 2, p}, Team(workspace));
        },
        {"engine:", "fftw"});
}

TEST_CASE("only the block-causal engine accepts key log-scales", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const LagWeights<double> c = random_weights<double>(5, 4, 4);
  const Matrix<double> A = Matrix<double>::Ones(5, 2), B = Matrix<double>::Ones(4, 2);
  const MatrixView<double> a = A, b = B;
  const std::vector<double> exponents(4, 0.0);
  Matrix<double> Y(5, 2);
  for (const Engine engine : engines()) {
    const toeplitz::Product<double> product(engine, c.view(), {5, 4, 2, 2}, team);
    const auto contract = [&] { product.contract({a, b, b, Slots{5}, Slots{4}, exponents.data()}, Y, team); };
    if (engine == Engine::block_causal)
      CHECK_NOTHROW(contract());
    else
      check_invalid(contract, {"key_log_scales:", name(engine)});
  }
}

TEST_CASE("a product reports its engine", "[toeplitz]") {
  Workspace workspace;
  const LagWeights<double> c = random_weights<double>(700, 700, 4);
  for (const Engine engine : engines()) CHECK(engine_of(engine, c, {700, 700, 1, 2}) == engine);
  for (const ProductShape& span : {ProductShape{700, 700, 1, 2}, {700, 700, 9, 9}, {20, 700, 1, 2}})
    CHECK(engine_of(Engine::automatic, c, span) == toeplitz::choose(c.view(), span, {span.n_q}, {span.n_k}, workspace));
  // if all products are zero there is no engine
  for (const Engine engine : {Engine::automatic, Engine::direct})
    for (const ProductShape& span : {ProductShape{0, 7, 1, 2}, {7, 0, 1, 2}, {7, 7, 0, 2}})
      CHECK(engine_of(engine, c, span) == engine);
  CHECK(engine_of(Engine::automatic, {0, Vector<double>::Zero(3)}, {7, 7, 1, 2}) == Engine::automatic);
}

TEMPLATE_TEST_CASE("engines differ in their rounding errors: the requested engine is used", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  // with a tail for banded, one-sided and long enough for block-causal
  InSlots<T> x(300, 300, Slots{300}, Slots{300}, 3, 2);
  x.c.values.head(100).setOnes();
  x.c.values.tail(299).setZero();
  std::vector<Matrix<T>> products;
  for (const Engine engine : engines()) {
    products.push_back(
        x.contract([&](auto lags, const ProductShape& span,
                       const Team& with) { return make_product(engine)(lags.with_equal_ends(), span, with); },
                   team));
    for (std::size_t other = 0; other + 1 < products.size(); ++other)
      CHECK_FALSE(same_bits(products[other], products.back()));
  }
}

TEST_CASE("without weights at reachable lags, or without tokens, a product and its gradients are zero", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  std::vector<Engine> all = engines();
  all.push_back(Engine::automatic);
  const auto check = [&](const InSlots<double>& x) {
    for (const Engine engine : all) {
      INFO(std::string(name(engine)) << ", " << x.name());
      CHECK(x.contract_with_ones(make_product(engine), team).isZero(0));
      const toeplitz::Gradients<double> d = x.gradients(make_product(engine), team);
      CHECK((d.dA.isZero(0) && d.dB.isZero(0) && d.dU.isZero(0) && d.dc.isZero(0)));
    }
  };
  const std::vector<Index> none, some = random_slots(9, 0.5, 1);
  check({9, 9, some, none, 3, 2});
  check({9, 9, none, some, 3, 2});
  check({9, 9, none, none, 3, 2});
  check({9, 9, some, some, 0, 2});
  for (const bool has_keys : {false, true}) {  // with a tail
    InSlots<double> x(200, 300, has_keys ? none : random_slots(200, 0.5, 1),
                      has_keys ? random_slots(300, 0.5, 1) : none, 3, 2);
    x.c.values.head(100).setConstant(0.5);
    x.c.tails.before = 99;
    check(x);
  }
  InSlots<double> x(9, 9, some, some, 3, 2);
  x.c.values.setZero();
  check(x);
  x.c = {};
  check(x);
}

TEMPLATE_TEST_CASE("tokens may leave slots empty, and a product gives numerators and denominators at once",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  with_gaps<T>([&](InSlots<T>&& x) {
    for (const Engine engine : engines()) {
      const auto make = make_product(engine);
      INFO(std::string(name(engine)) << ", " << x.name());
      CHECK(x.error(engine, x.contract(make, team)) <= 1);
      CHECK(x.error(engine, x.contract_with_ones(make, team)) <= 1);
      CHECK(x.error(engine, x.gradients(make, team)) <= 1);
    }
  });
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)) << " without values");
    const InSlots<T> x(40, 33, Slots{40}, Slots{33}, 3, 0);
    CHECK(x.error(engine, x.contract_with_ones(make_product(engine), team)) <= 1);
  }
}

TEMPLATE_TEST_CASE("no bit of a product or of its gradients depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    check_thread_bits(InSlots<TestType>(300, 280, random_slots(300, 0.9, 1), random_slots(280, 0.9, 2), 35, 37),
                      make_product(engine));
    check_thread_bits(InSlots<TestType>(1100, 1100, Slots{1100}, Slots{1100}, 5, 65), make_product(engine));
  }
}

TEST_CASE("the gradients of the factors have the same bits if those of the weights are not requested", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  InSlots<double> x(200, 150, random_slots(200, 0.5, 1), random_slots(150, 0.5, 2), 3, 2);
  x.c.values.head(100).setConstant(0.5);
  x.c.tails.before = 99;
  const MatrixView<double> a = x.A, b = x.B, u = x.U, g = x.G;
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    toeplitz::Gradients<double> expected = x.gradients(make_product(engine), team), d = expected;
    d.dA.setConstant(17), d.dB.setConstant(17), d.dU.setConstant(17), d.dc.resize(0);
    const Workspace::Scope scope(workspace);
    make_product(engine)(x.c.view(), x.span, team)
        .gradients({a, b, u, x.queries, x.keys}, g, {d.dA, d.dB, d.dU, d.dc}, {}, team);
    expected.dc.resize(0);
    CHECK(same_bits(d, expected));
  }
}

TEST_CASE("threads may share a product, each with a team of its own", "[toeplitz][threads]") {
  std::vector<Workspace> workspaces(4);
  const Team team(workspaces);
  for (const Engine engine : engines()) {
    INFO(std::string(name(engine)));
    const InSlots<double> x(300, 200, Slots{300}, Slots{200}, 3, 2);
    const Matrix<double> expected = x.contract(make_product(engine), team);
    Workspace tables;
    const toeplitz::Product<double> product(engine, x.c.view(), x.span, Team(tables));
    const MatrixView<double> a = x.A, b = x.B, u = x.U;
    std::vector<Matrix<double>> Y(16, Matrix<double>(300, 2));
    team.run(16, [&](Index task, Workspace& scratch) {
      product.contract({a, b, u, x.queries, x.keys}, Y[static_cast<std::size_t>(task)], Team(scratch));
    });
    for (const Matrix<double>& each : Y) CHECK(same_bits(each, expected));
  }
}

}  // namespace nprf::test::toeplitz_product
