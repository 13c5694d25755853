// SPDX-License-Identifier: MIT

#include "differential/reference.hpp"

#include <string>
#include <vector>

#include "differential/check.hpp"
#include "differential/inputs.hpp"
#include "differential/random_case.hpp"
#include "differential/run.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::differential {

namespace {

Case small_case(Map map, Place place, std::uint64_t seed, Index near = 0, Index sinks = 0) {
  Draw draw(seed);
  Case c;
  c.seed = seed, c.in_double = true, c.map = map, c.causal = seed % 3 == 0;
  c.d = 3, c.m = 4, c.d_v = 2, c.n_q = 5, c.n_k = 6;
  c.near = near, c.sinks = sinks;
  c.radius = seed % 2 == 0 ? 1.5 : 0;
  Bias grid;
  grid.place = Place::grid, grid.height = 2, grid.width = 2, grid.extra_tokens = 1;
  if (place == Place::grid) c.n_q = c.n_k = 5;
  c.biases.push_back(random_bias(draw, place, 6, c.causal, grid));
  return c;
}

// the largest difference of dx from central differences of dy.y with respect to x, relative to the largest gradient
template <class Numbers>
double difference_error(const Problem& problem, const std::vector<Exact>& dx, Numbers&& numbers) {
  constexpr Exact h = 1e-6L;
  Exact worst = 0, largest = 1e-3L;
  for (std::size_t at = 0; at < dx.size(); ++at) {
    const auto loss = [&](Exact by) {
      Problem x = problem;
      numbers(x, at) += by;
      const Truth truth = solve(x);
      Exact sum = 0;
      for (std::size_t p = 0; p < truth.y.size(); ++p) sum += truth.y[p] * x.dy[p];
      return sum;
    };
    worst = std::max(worst, std::abs((loss(h) - loss(-h)) / (2 * h) - dx[at]));
    largest = std::max(largest, std::abs(dx[at]));
  }
  return static_cast<double>(worst / largest);
}

Exact& parameter(Problem& x, std::size_t at) {
  Bias& bias = x.models[0].bias;
  if (bias.place == Place::alibi) return bias.slope;
  return at < bias.weights.size() ? bias.weights[at] : bias.extra[at - bias.weights.size()];
}

const std::vector<Map> maps{Map::orf, Map::hyperbolic, Map::trf, Map::elu, Map::taylor, Map::centred_taylor};
const std::vector<Place> places{Place::none, Place::table, Place::t5, Place::alibi, Place::grid};

}  // namespace

TEST_CASE("the gradients of the reference are central differences", "[differential]") {
  std::uint64_t seed = 40;
  const auto check = [&](Map map, Place place, Index near, Index sinks = 0) {
    const Case c = small_case(map, place, ++seed, near, sinks);
    INFO(c.name());
    Problem problem = Inputs<double>(c).problem();
    const Truth truth = solve(problem);
    CHECK(difference_error(problem, truth.dq, [](Problem& x, std::size_t i) -> Exact& { return x.q[i]; }) < 1e-8);
    CHECK(difference_error(problem, truth.dk, [](Problem& x, std::size_t i) -> Exact& { return x.k[i]; }) < 1e-8);
    CHECK(difference_error(problem, truth.dv, [](Problem& x, std::size_t i) -> Exact& { return x.v[i]; }) < 1e-8);
    CHECK(difference_error(problem, truth.db[0], parameter) < 1e-8);
  };
  for (const Map map : maps)
    for (const Place place : places) {
      check(map, place, 0);
      if (map != Map::elu) check(map, place, 2);
    }
  for (const Place place : places) check(Map::orf, place, 0, 3), check(Map::centred_taylor, place, 1, 2);
}

TEST_CASE("the reference of the search equals nprf::reference where that is precise", "[differential]") {
  std::uint64_t seed = 80;
  const auto check = [&](Map map, Place place, Index near, Index sinks = 0) {
    const Case c = small_case(map, place, ++seed, near, sinks);
    INFO(c.name());
    const Inputs<double> inputs(c);
    Problem problem = inputs.problem();
    const Truth truth = solve(problem);
    const auto rows = [](const std::vector<double>& x, Index n) {
      return Eigen::Map<const Matrix<double>>(x.data(), n, static_cast<Index>(x.size()) / n);
    };
    const AttentionOptions options{c.causal ? Direction::causal : Direction::bidirectional,
                                   c.radius > 0 ? Normalization::unit(c.radius) : Normalization::none(),
                                   Engine::automatic, near, sinks};
    const Matrix<double> y = std::visit(
        [&](const auto& map_of, const auto& position) {
          return reference::kernelized_attention(Attention(map_of, position, options), rows(inputs.q, c.n_q),
                                                 rows(inputs.k, c.n_k), rows(inputs.v, c.n_k));
        },
        inputs.maps[0], inputs.positions[0]);
    double worst = 0;
    for (Index i = 0; i < c.n_q; ++i)
      if (truth.rows[static_cast<std::size_t>(i)] == Row::regular && !truth.is_softmax[static_cast<std::size_t>(i)])
        for (Index p = 0; p < c.d_v; ++p)
          worst = std::max(worst,
                           std::abs(y(i, p) - static_cast<double>(truth.y[static_cast<std::size_t>(i * c.d_v + p)])));
    CHECK(worst < 1e-10);
  };
  for (const Map map : maps)
    for (const Place place : places) {
      check(map, place, 0);
      if (map != Map::elu) check(map, place, 2);
    }
  for (const Place place : places) check(Map::orf, place, 0, 3), check(Map::centred_taylor, place, 1, 2);
}

TEST_CASE("the checks find an error in any result", "[differential]") {
  const Case c = small_case(Map::orf, Place::table, 7);
  const Inputs<double> inputs(c);
  Problem problem = inputs.problem();
  const Truth truth = solve(problem);
  Tally tally;
  Checker<double> check(inputs, truth, tally, true);
  const Result<double> right = make_runner(inputs, Engine::direct)->run(inputs);
  CHECK(check(right).empty());
  using Numbers = std::vector<double> Result<double>::*;
  const std::pair<Kind, Numbers> all[] = {{Kind::y, &Result<double>::y},
                                          {Kind::saved_y, &Result<double>::saved_y},
                                          {Kind::dq, &Result<double>::dq},
                                          {Kind::dk, &Result<double>::dk},
                                          {Kind::dv, &Result<double>::dv}};
  for (const double by : {1e-6, std::numeric_limits<double>::quiet_NaN()}) {
    for (const auto& [kind, numbers] : all) {
      Result<double> wrong = right;
      (wrong.*numbers).back() += by;
      const std::vector<Failure> failures = check(wrong);
      REQUIRE(failures.size() == 1);
      CHECK(failures[0].kind == kind);
    }
    Result<double> wrong = right;
    wrong.db[0].front() += by;
    CHECK(check(wrong).size() == 1);
  }
}

}  // namespace nprf::test::differential
