// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/smooth/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/product.hpp"
#include "toeplitz/in_slots.hpp"
#include "toeplitz/smooth/smooth_tables.hpp"

namespace nprf::test::toeplitz_smooth_engine {

using toeplitz::SmoothEngine;

namespace {

constexpr auto make = []<class T>(LagWeightsView<T> c, const ProductShape& span, const Team& team) {
  return SmoothEngine<T>(c, span, team);
};

// the products and the gradients of positive features, and of features of both signs
template <Real T>
InSlots<T>& with_positive_features(InSlots<T>& x) {
  x.A = x.A.cwiseAbs(), x.B = x.B.cwiseAbs();
  return x;
}

// sum of dc times a polynomial of the lag, whose degree is below the number of polynomials: these are exact
template <Real T>
double moment(const LagWeights<T>& c, const Vector<T>& dc, int degree) {
  double sum = 0;
  for (Index k = 0; k < dc.size(); ++k)
    sum += static_cast<double>(dc[k]) *
           std::pow(static_cast<double>(c.first + k) / static_cast<double>(dc.size()), degree);
  return sum;
}

}  // namespace

TEMPLATE_TEST_CASE("products by moments are those of all pairs, up to the deviation", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  const std::pair<Index, Index> columns[] = {{3, 5}, {8, 16}, {1, 1}, {3, 5}};
  Index turn = 0;
  for (const SmoothTable& table : smooth_tables())
    for (const Index last : {Index{0}, Index{1 << 20}})
      for (const auto& [n_q, n_k] : {std::pair<Index, Index>{640, 640}, {512, 200}, {130, 700}}) {
        const auto [r, p] = columns[turn++ % 4];
        InSlots<T> x(n_q, n_k, Slots{n_q}, Slots{n_k}, r, p);
        x.c = weights_of<T>(table, n_q, n_k, smooth_deviation<T>, last);
        INFO(table.name << ", last lag " << last << ", " << x.name());
        for (const bool positive : {false, true}) {
          if (positive) with_positive_features(x);
          CHECK(x.error(Engine::smooth, x.contract(make, team)) <= 1);
          CHECK(x.error(Engine::smooth, x.contract_with_ones(make, team)) <= 1);
          const toeplitz::Gradients<T> d = x.gradients(make, team);
          CHECK(product_error(Engine::smooth, x.c, x.G, x.U, x.B, d.dA) <= 1);
          CHECK(product_error(Engine::smooth, transposed(x.c), x.U, x.G, x.A, d.dB) <= 1);
          CHECK(product_error(Engine::smooth, transposed(x.c), x.B, x.A, x.G, d.dU) <= 1);
        }
      }
}

TEMPLATE_TEST_CASE("slots may be empty, also whole chunks of them", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const auto without_middle = [](std::vector<Index> slots) {
    std::erase_if(slots, [](Index s) { return s > 300 && s < 500; });
    return slots;
  };
  const std::vector<Index> q = without_middle(random_slots(800, 0.5, 1)), k = without_middle(random_slots(900, 0.3, 2));
  for (const Index last : {Index{0}, Index{1 << 20}}) {
    InSlots<T> x(800, 900, q, k, 3, 5);
    x.c = weights_of<T>(smooth_tables()[0], 800, 900, smooth_deviation<T>, last);
    CHECK(x.error(Engine::smooth, x.contract_with_ones(make, team)) <= 1);
    const toeplitz::Gradients<T> d = x.gradients(make, team), direct = x.gradients(make_product(Engine::direct), team);
    for (const auto& [got, expected] :
         {std::pair(&d.dA, &direct.dA), std::pair(&d.dB, &direct.dB), std::pair(&d.dU, &direct.dU)})
      CHECK((*got - *expected).cwiseAbs().maxCoeff() <= 30 * smooth_deviation<T> * expected->cwiseAbs().maxCoeff());
  }
}

TEMPLATE_TEST_CASE(
    "the gradient of weights is that of the product, which polynomials of the lag have in common with "
    "the exact one",
    "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const Index last : {Index{0}, Index{1 << 20}}) {
    InSlots<T> x(960, 960, Slots{960}, Slots{960}, 4, 6);
    x.c = weights_of<T>(smooth_tables()[0], 960, 960, smooth_deviation<T>, last);
    Workspace own;
    const SmoothEngine<T> engine(x.c.view(), x.span, Team(own));
    REQUIRE(engine.plan().top() >= 1);
    const Vector<T> dc = x.gradients(make, team).dc, direct = x.gradients(make_product(Engine::direct), team).dc;
    CHECK_FALSE(same_bits(Matrix<T>(dc), Matrix<T>(direct)));
    // lags before the last one: the others have no weight
    Vector<T> ours = dc, exact = direct;
    for (Index k = 0; k < dc.size(); ++k)
      if (x.c.values[k] == T(0)) ours[k] = exact[k] = T(0);
    for (int degree = 0; degree < int(engine.plan().terms()); ++degree) {
      INFO("last lag " << last << ", degree " << degree);
      const double size = moment<T>(x.c, exact.cwiseAbs(), degree);
      CHECK(std::abs(moment<T>(x.c, ours, degree) - moment<T>(x.c, exact, degree)) <=
            1000 * epsilon<T> * std::abs(size) + 1e-300);
    }
  }
}

TEMPLATE_TEST_CASE("the gradient of weights agrees with differences of the product", "[toeplitz]", double) {
  // c(e) = c exp(e w): the loss is the sum of G o Y, of which the derivative is the sum of dc c w
  Workspace workspace;
  const Team team(workspace);
  const Index n = 640;
  InSlots<double> x(n, n, Slots{n}, Slots{n}, 3, 4);
  const auto weights = [&](double e) {
    return weights_of<double>({"", [=](double l) { return std::pow(1 + std::abs(l), -1 - e); }}, n, n, 1e-4, 0);
  };
  const auto loss = [&](double e) {
    x.c = weights(e);
    return x.contract(make, team).cwiseProduct(x.G).sum();
  };
  const double h = 1e-4, expected = (loss(h) - loss(-h)) / (2 * h);
  x.c = weights(0);
  const Vector<double> dc = x.gradients(make, team).dc;
  double got = 0, size = 0;
  for (Index k = 0; k < dc.size(); ++k) {
    const double w = -std::log1p(std::abs(static_cast<double>(x.c.first + k))), each = dc[k] * x.c.values[k] * w;
    got += each, size += std::abs(each);
  }
  CHECK(std::abs(got - expected) <= 1e-7 * size);
}

TEMPLATE_TEST_CASE("no bit of a row depends on later tokens or on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(3);
  const Team one(workspaces.front()), three(workspaces);
  const Index n = 4500;
  InSlots<T> x(n, n, Slots{n}, Slots{n}, 4, 5);
  for (const Index last : {Index{0}, Index{1 << 20}}) {
    x.c = weights_of<T>(smooth_tables()[0], n, n, smooth_deviation<T>, last);
    const Matrix<T> Y = x.contract_with_ones(make, one);
    CHECK(same_bits(Y, x.contract_with_ones(make, three)));
    CHECK(same_bits(x.gradients(make, one), x.gradients(make, three)));
    if (last > 0) continue;
    for (const Index from : {Index{1}, Index{700}, n - 1}) {
      Matrix<T> B = x.B, U = x.U;
      x.B.bottomRows(n - from).setConstant(3), x.U.bottomRows(n - from).setConstant(-7);
      CHECK(same_bits(Matrix<T>(x.contract_with_ones(make, one).topRows(from)), Matrix<T>(Y.topRows(from))));
      x.B = B, x.U = U;
    }
  }
}

TEMPLATE_TEST_CASE("without a deviation, and where no block is smooth, all pairs are in tiles", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  InSlots<T> x(700, 640, Slots{700}, Slots{640}, 3, 5);
  const auto check = [&](const LagWeights<T>& c) {
    x.c = c;
    const Workspace::Scope scope(workspace);
    const SmoothEngine<T> engine(x.c.view(), x.span, team);
    CHECK(engine.plan().top() == -1);
    CHECK(engine.deviation() == 0);
    LagWeights<T> exact = c;
    exact.max_deviation = 0;
    CHECK(product_error(Engine::direct, exact, x.A, x.B, x.U, x.contract(make, team)) <= 1);
    CHECK(gradients_error(Engine::direct, exact, x.A, x.B, x.U, x.G, x.gradients(make, team)) <= 1);
  };
  check(weights_of<T>(smooth_tables()[0], 700, 640, 0));
  LagWeights<T> noise = random_weights<T>(700, 640, 3);
  noise.max_deviation = 1e-3;
  check(noise);
}

TEMPLATE_TEST_CASE("the deviation is at most the requested one, but for rounding", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  for (const SmoothTable& table : smooth_tables())
    for (const double most : {1e-3, 1e-4, 2.5e-5}) {
      const LagWeights<T> c = weights_of<T>(table, 2000, 2000, most);
      const SmoothEngine<T> engine(c.view(), {2000, 2000, 2, 2}, Team(workspace));
      CHECK((engine.deviation() > 0 && engine.deviation() <= most + 500 * epsilon<T>));
    }
}

TEMPLATE_TEST_CASE("weights of 20 and more decades keep the precision of each row", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  for (const double slope : {0.01, 0.05, 0.3}) {
    InSlots<T> x(1000, 1000, Slots{1000}, Slots{1000}, 2, 3);
    with_positive_features(x);
    x.c = weights_of<T>({"", [=](double l) { return std::exp(-slope * std::abs(l)); }}, 1000, 1000, smooth_deviation<T>,
                        0);
    x.B.bottomRows(900).setZero();  // the last rows have only far keys
    INFO("slope " << slope);
    // weights below the smallest normal number lose digits in any engine
    for (Index k = 0; k < x.c.values.size(); ++k)
      if (x.c.values[k] < std::numeric_limits<T>::min()) x.c.values[k] = 0;
    CHECK(x.error(Engine::smooth, x.contract_with_ones(make, team)) <= 1);
  }
}

}  // namespace nprf::test::toeplitz_smooth_engine
