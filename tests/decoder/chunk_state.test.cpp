// SPDX-License-Identifier: MIT
#include "nprf/decoder/chunk_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/core/row_quotient.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_chunk_state {

namespace {

template <Real T>
struct State {
  static constexpr Index r = 5, d_v = 3;
  static constexpr TokenShape shape{r, d_v, 0};

  // with log-scales from -range to range
  State(const Vector<T>& table, Index tokens, double range, Index rollback = 0)
      : bias(LagBias<T>(RelativePosition<T>(table).bias()).view(), 0, 8, 0, tokens),
        model(bias, shape, tokens, 0, rollback),
        ring(shape, tokens),
        state(model, shape),
        phi(normal<T>(tokens, 16, 1).cwiseAbs()),
        v(normal<T>(tokens, d_v, 2)),
        log_scales(range * normal_vector<double>(tokens, 3)) {
    phi.rightCols(16 - r).setZero();
    ring.reserve(tokens), state.reserve(model, tokens);
  }
  void append(Index j) {
    ring.put(j, {&phi(j, 0), 1, &v(j, 0), log_scales[j], T(0), v.row(j).cwiseAbs().maxCoeff(), true, true}, nullptr);
    state.append(model, ring, j + 1, scratch);
  }

  StepBias<T> bias;
  ChunkModel<T> model;
  TokenRing<T> ring;
  ChunkState<T> state;
  Matrix<T> phi, v;
  Vector<double> log_scales;
  Workspace scratch;
};

// the largest error of the sums of each query from the `first` one on, relative to the sums of magnitudes
template <Real T>
double worst_error(State<T>& x, Index tokens, Index first) {
  constexpr Index d_v = State<T>::d_v;
  double worst = 0;
  for (Index t = 0; t < tokens; ++t) {
    x.append(t);
    if (t < first) continue;
    x.state.advance(x.model, x.ring, t + 1, x.scratch);
    const Index end = x.model.first_near(t + 1);
    CHECK(x.state.any() == (end > 0));
    if (end == 0) continue;
    Vector<double> N = Vector<double>::Zero(d_v), sizes = N;
    double D = 0;
    for (Index j = 0; j < end; ++j) {
      const double score = x.phi.row(t).template cast<double>().dot(x.phi.row(j).template cast<double>()),
                   weight = score * std::exp(x.log_scales[j] + x.bias(t - j) - x.state.log_unit());
      const Vector<double> value = x.v.row(j).template cast<double>();
      N += weight * value, sizes += weight * value.cwiseAbs(), D += weight;
    }
    Vector<T> sums = Vector<T>::Zero(16);
    const double sum = static_cast<double>(x.state.add_product(x.model, t, &x.phi(t, 0), T(1), sums.data(), x.scratch));
    worst = std::max(worst, std::abs(sum - D) / D);
    for (Index p = 0; p < d_v; ++p) worst = std::max(worst, std::abs(static_cast<double>(sums[p]) - N[p]) / sizes[p]);
    CHECK(x.state.largest_value() == x.v.topRows(end).cwiseAbs().maxCoeff());
  }
  return worst;
}

}  // namespace

TEST_CASE("sums of chunks are those of their tokens", "[decoder]") {
  using T = float;
  constexpr Index n = 900;
  for (const double range : {0.0, 30.0, 1e4})
    for (const Index first : {0, 450}) {
      State<T> x(waving_table<T>(n), n, range);
      REQUIRE(x.model.levels() >= 3);
      const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
      // weights of tokens, products with queries, and exponents of log-scales
      CHECK(worst_error(x, n, first) <= x.model.deviation() + 8 * eps);
    }
}

TEST_CASE("sums of chunks hold every old token once, however the table is divided", "[decoder]") {
  using T = float;
  constexpr Index n = 1500;
  // a wave; a step at age 300, so that smooth blocks of younger tokens are between rough ones
  for (const bool has_step : {false, true}) {
    Vector<T> table(2 * n - 1);
    for (Index l = 0; l < table.size(); ++l)
      table[l] = static_cast<T>(0.2 * std::sin(static_cast<double>(l - n + 1) / 300) +
                                (has_step && std::abs(l - n + 1) > 300 ? 0.1 : 0));
    State<T> x(table, n, 1, 200);
    REQUIRE(x.model.any());
    CHECK(x.model.near_chunks() == (has_step ? 6 : 2));
    CHECK(worst_error(x, n, 0) <= x.model.deviation() + 8 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
}

}  // namespace nprf::test::decoder_chunk_state
