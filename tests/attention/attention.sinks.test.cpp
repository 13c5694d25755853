// SPDX-License-Identifier: MIT
//
// Attention with sinks, the first keys.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/exact_pairs_case.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_attention_sinks {

namespace {

constexpr Index n = 100, d = 5, d_v = 3;

template <Real T>
PositiveFeatures<T> positive() {
  return exact_pairs_map<T>(d);
}

TaylorFeatures<double> taylor() { return TaylorFeatures<double>({.input_dim = d, .directions = 3}); }

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// q.k is large for the first key alone, which all queries resemble
Tokens<double> tokens_with_sink(std::uint64_t seed) {
  Tokens<double> x = random_tokens<double>(n, n, d, d_v, seed);
  x.q *= 0.3, x.k *= 0.3;
  x.q.col(0).array() += 2;
  x.k.row(0).setZero();
  x.k(0, 0) = 6;
  return x;
}

}  // namespace

TEST_CASE("attention with sinks equals the formula, by every engine", "[attention]") {
  check_engines_of_maps({{4, 3}, {0, 1}, {0, 5}, {9, 70}, {0, 300}});
}

TEST_CASE("the first keys of a grid are its extra tokens", "[attention]") {
  constexpr Index height = 5, width = 7, E = 2;
  const Index tokens = E + height * width;
  const Tokens<double> x = random_tokens<double>(tokens, tokens, d, d_v, 5);
  Matrix<double> extra = normal<double>(E, E + 2, 7);
  extra(0, 1) = 30;  // far weights are relative to this bias, but not those of the extra queries
  extra(1, 3) = -std::numeric_limits<double>::infinity();
  const GridPosition<double> grid(height, width, normal<double>(2 * height - 1, 2 * width - 1, 6), extra);
  for (const Index masked : {tokens, Index{0}, Index{4}}) {
    Mask mask = Mask::Constant(tokens, true);
    if (masked < tokens) mask[masked] = false;
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Engine engine : {Engine::automatic, Engine::direct, Engine::grid})
        for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 1}, {0, 2}, {2, 2}, {2, 9}, {0, 50}})
          CHECK(agrees(Attention(positive<double>(), grid,
                                 {.direction = direction, .engine = engine, .near = near, .sinks = sinks}),
                       x, 0, mask));
  }
}

TEST_CASE("each packed sequence has sinks of its own, and padding is none", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 8);
  const RelativePosition<double> position(random_table<double>(30, 9));
  const std::vector<Index> ends{0, 40, 41, 43, n};
  Mask mask = Mask::Constant(n, true);
  mask[0] = mask[2] = mask[44] = false;
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Attention attention(positive<double>(), position, {.direction = direction, .near = 2, .sinks = 3});
    const Matrix<double> y = attention(x.q, x.k, x.v, {.key_mask = view(mask), .cumulative_lengths = ends});
    for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
      const Index first = ends[s], count = ends[s + 1] - first;
      const Matrix<double> expected = reference::kernelized_attention(
          attention, x.q.middleRows(first, count), x.k.middleRows(first, count), x.v.middleRows(first, count), 0,
          [&](Index, Index j) { return mask[first + j]; });
      CHECK((y.middleRows(first, count) - expected).cwiseAbs().maxCoeff() <= 1e-11);
    }
    const Index length = 57;
    const Matrix<double> padded = attention(x.q, x.k, x.v, {.lengths = std::vector<Index>{length}}),
                         expected =
                             reference::kernelized_attention(attention, x.q, x.k.topRows(length), x.v.topRows(length));
    CHECK((padded - expected).cwiseAbs().maxCoeff() <= 1e-11);
  }
}

TEST_CASE("if all keys are sinks, attention is that of softmax", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 10);
  Vector<double> b = random_table<double>(n, 11);
  for (Index l = 0; l < b.size(); l += 9) b[l] = -std::numeric_limits<double>::infinity();
  const RelativePosition<double> position(b);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Normalization normalization : {Normalization::unit(8), Normalization::none()})
      for (const Index near : {0, 10}) {
        const Matrix<double> expected =
            reference::softmax_attention<double>(x.q, x.k, x.v, position, direction, normalization);
        const Attention attention(positive<double>(), position,
                                  {.direction = direction, .normalization = normalization, .near = near, .sinks = n});
        CHECK((attention(x.q, x.k, x.v) - expected).cwiseAbs().maxCoeff() <=
              256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
      }
}

TEST_CASE("a key that features cannot represent is exact as a sink", "[attention]") {
  const Tokens<double> x = tokens_with_sink(12);
  const auto error = [&](Index sinks) {
    Report report;
    Attention(taylor(), AlibiPosition<double>(0.01),
              {.direction = Direction::causal, .normalization = Normalization::none(), .near = 4, .sinks = sinks})(
        x.q, x.k, x.v, {.report = &report, .softmax_samples = n});
    return report.softmax_error;
  };
  CHECK(error(0) > 0.1);
  CHECK(error(1) < 0.01);
}

TEST_CASE("sinks that weigh nothing do not make a row be recomputed", "[attention]") {
  // the bias of the first key is -0.5 i: its weight underflows in most rows, and its rounded bias has no digits
  const Tokens<float> x = random_tokens<float>(3000, 3000, d, d_v, 13);
  for (const Engine engine : {Engine::automatic, Engine::recurrence}) {
    const Attention attention(
        positive<float>(), AlibiPosition<float>(0.5F),
        {.direction = Direction::causal, .normalization = Normalization::unit(1.2), .engine = engine, .sinks = 2});
    Report report;
    const Matrix<float> y = attention(x.q, x.k, x.v, {.report = &report});
    CHECK(report.repaired_rows == 0);
    const Matrix<float> without = Attention(
        positive<float>(), AlibiPosition<float>(0.5F),
        {.direction = Direction::causal, .normalization = Normalization::unit(1.2), .engine = engine})(x.q, x.k, x.v);
    CHECK((y - without).bottomRows(2800).cwiseAbs().maxCoeff() <= 1e-5F);
    CHECK((y - without).topRows(10).cwiseAbs().maxCoeff() > 1e-3F);
  }
}

TEST_CASE("rows that attend only to sinks, or to far keys of small weight, are those of softmax", "[attention]") {
  // beside the peak at lag 0 all other weights underflow; the last queries attend to no key at it
  constexpr Index keys = 40;
  const Tokens<double> x = random_tokens<double>(n, keys, d, d_v, 14);
  Vector<double> b = random_table<double>(n - 1, 15);
  b[n - 1] = 2000;
  const RelativePosition<double> position(b);
  const Matrix<double> exact =
      reference::softmax_attention<double>(x.q, x.k, x.v, position, Direction::bidirectional, Normalization::unit(1));
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal})
    for (const Index near : {0, 4}) {
      Report report;
      const Matrix<double> y = Attention(positive<double>(), position, {.engine = engine, .near = near, .sinks = 3})(
          x.q, x.k, x.v, {.report = &report});
      const double bound = report.error_bound * x.v.cwiseAbs().maxCoeff();
      CHECK(report.repaired_rows == n - keys);
      CHECK((y - exact).bottomRows(n - keys).cwiseAbs().maxCoeff() <= bound);
    }
}

TEMPLATE_TEST_CASE("exact pairs keep their digits however far their biases are below the largest of all", "[attention]",
                   float, double) {
  using T = TestType;
  constexpr Index tokens = 9, lag_of_peak = -6;
  const Tokens<T> x = random_tokens<T>(tokens, tokens, d, d_v, 70);
  const Matrix<T> dy = normal<T>(tokens, d_v, 71);
  const T scale = 1 / std::sqrt(static_cast<T>(d));
  for (const double low : {-1e2, -1e5, -1e9, -1e16, -1e30})
    for (const bool has_peak : {false, true}) {
      Vector<T> b = random_table<T>(tokens - 1, 72);
      if (has_peak)  // to which the first queries do not attend
        b[tokens - 1 + lag_of_peak] = T(-low);
      else  // the first queries attend to no other lags
        b[tokens - 1] = b[tokens - 2] = T(low);
      // softmax and its gradients, as loops
      Matrix<double> y = Matrix<double>::Zero(tokens, d_v), dq = Matrix<double>::Zero(tokens, d), dk = dq, dv = y,
                     db = Matrix<double>::Zero(b.size(), 1);
      for (Index i = 0; i < tokens; ++i) {
        const auto bias = [&](Index j) { return static_cast<long double>(b[tokens - 1 + j - i]); };
        std::vector<long double> p;
        long double largest = bias(0), sum = 0;
        for (Index j = 0; j <= i; ++j) largest = std::max(largest, bias(j));
        for (Index j = 0; j <= i; ++j)
          p.push_back(std::exp(static_cast<long double>(x.q.row(i).dot(x.k.row(j)) * scale) + (bias(j) - largest)));
        for (const long double w : p) sum += w;
        const auto in_double = [](const auto& row) { return row.template cast<double>().eval(); };
        for (Index j = 0; j <= i; ++j) y.row(i) += static_cast<double>(p[at(j)] / sum) * in_double(x.v.row(j));
        for (Index j = 0; j <= i; ++j) {
          const double weight = static_cast<double>(p[at(j)] / sum),
                       ds = weight * in_double(dy.row(i)).dot(in_double(x.v.row(j)) - y.row(i));
          dv.row(j) += weight * in_double(dy.row(i));
          dq.row(i) += ds * scale * in_double(x.k.row(j));
          dk.row(j) += ds * scale * in_double(x.q.row(i));
          db(tokens - 1 + j - i, 0) += ds;
        }
      }
      for (const auto& [near, sinks] :
           {std::pair<Index, Index>{0, tokens}, {tokens - 1, 1}, {tokens, 0}, {3, tokens}}) {
        INFO("low " << low << (has_peak ? " peak" : "") << " near " << near << " sinks " << sinks);
        const Attention attention(positive<T>(), RelativePosition<T>(b),
                                  {.direction = Direction::causal,
                                   .normalization = Normalization::none(),
                                   .engine = Engine::direct,
                                   .near = near,
                                   .sinks = sinks});
        // of scores, exponentials and sums over at most `tokens` terms of size 1 to 10
        const double tolerance = 500 * static_cast<double>(std::numeric_limits<T>::epsilon());
        const auto differs = [&](const Matrix<T>& a, const Matrix<double>& exact) {
          return (a.template cast<double>() - exact).cwiseAbs().maxCoeff();
        };
        const Passes<T> got = both_passes(attention, x, dy);
        CHECK(differs(got.y, y) <= tolerance);
        CHECK(differs(got.g.queries, dq) <= tolerance);
        CHECK(differs(got.g.keys, dk) <= tolerance);
        CHECK(differs(got.g.values, dv) <= tolerance);
        CHECK(differs(got.g.bias, db) <= tolerance);
      }
    }
}

TEST_CASE("weights of near keys and sinks of very large exponents do not overflow", "[attention]") {
  const Tokens<float> x = random_tokens<float>(n, n, d, d_v, 16);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Engine engine : {Engine::direct, Engine::block_causal, Engine::lanes})
      for (const Index sinks : {0, 4}) {
        const Attention attention(positive<float>(), RelativePosition<float>(random_table<float>(n, 17)),
                                  {.direction = direction,
                                   .normalization = Normalization::unit(8),
                                   .engine = engine,
                                   .near = 3,
                                   .sinks = sinks});
        const Matrix<float> y = attention(x.q, x.k, x.v);
        CHECK(y.allFinite());
        CHECK(y.cwiseAbs().maxCoeff() <= 1.0001F * x.v.cwiseAbs().maxCoeff());
        if (engine == Engine::direct) CHECK(agrees(attention, x));
      }
}

TEST_CASE("gradients with a near field and sinks are central differences", "[attention]") {
  constexpr Index few = 19;
  const Matrix<double> dy = normal<double>(few, 2, 20);
  Mask mask = Mask::Constant(few, true);
  for (Index j = 0; j < few; ++j) mask[j] = j % 6 != 1;
  const auto check = [&](const auto& map, const auto& make_position, const Matrix<double>& parameters,
                         AttentionOptions options, const Mask& keys) {
    const Tokens<double> x = random_tokens<double>(few, few, d, 2, 21);
    options.normalization = Normalization::unit(1.5);
    INFO("engine " << static_cast<int>(options.engine) << " near " << options.near << " sinks " << options.sinks);
    const auto attention_of = [&](const Matrix<double>& b) { return Attention(map, make_position(b), options); };
    return check_differences(attention_of, parameters, x, dy, {.key_mask = view(keys)}).g;
  };
  const auto relative = [](const Matrix<double>& b) { return RelativePosition<double>(Vector<double>(b.col(0))); };
  const Matrix<double> table = normal<double>(2 * few - 1, 1, 22);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal}) {
      check(positive<double>(), relative, table, {.direction = direction, .engine = engine, .sinks = 3}, mask);
      check(positive<double>(), relative, table, {.direction = direction, .engine = engine, .near = 3, .sinks = 5}, {});
      check(taylor(), relative, table, {.direction = direction, .engine = engine, .near = 2, .sinks = 2}, mask);
      for (const Mask& keys : {Mask(), mask}) {
        check(positive<double>(), relative, table, {.direction = direction, .engine = engine, .near = 4}, keys);
        check(taylor(), relative, table, {.direction = direction, .engine = engine, .near = 4}, keys);
      }
    }
  const auto alibi = [](const Matrix<double>& b) { return AlibiPosition<double>(b(0, 0)); };
  check(positive<double>(), alibi, Matrix<double>::Constant(1, 1, 0.1), {.direction = Direction::causal, .sinks = 2},
        {});
  // a grid: of its extra tokens' biases, too
  constexpr Index E = 3;
  const Matrix<double> b = normal<double>(7, 7, 24), extra = normal<double>(E, E + 2, 23);
  const auto grid = [&](const Matrix<double>& of) { return GridPosition<double>(4, 4, of, extra); };
  for (const Index sinks : {0, 2, 6}) {
    const AttentionOptions options{.near = 2, .sinks = sinks};
    const Gradients<double> g = check(positive<double>(), grid, b, options, mask);
    const Tokens<double> x = random_tokens<double>(few, few, d, 2, 21);
    CHECK(difference_error(extra, g.extra, [&](const Matrix<double>& of) {
            return Attention(positive<double>(), GridPosition<double>(4, 4, b, of),
                             {.normalization = Normalization::unit(1.5), .near = 2, .sinks = sinks})(
                       x.q, x.k, x.v, {.key_mask = view(mask)})
                .cwiseProduct(dy)
                .sum();
          }) < 1e-6);
  }
}

TEST_CASE("a non-finite sink changes only the rows that attend to it", "[attention]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  Vector<double> b = random_table<double>(n, 29);
  for (Index l = 0; l < b.size(); ++l)
    if (std::abs(l - n) > 60) b[l] = -std::numeric_limits<double>::infinity();  // farther than 60 tokens
  const Attention attention(positive<double>(), RelativePosition<double>(b),
                            {.direction = Direction::causal, .near = 3, .sinks = 2});
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v, 28);
  const Matrix<double> expected = attention(clean.q, clean.k, clean.v), dy = normal<double>(n, d_v, 30);
  for (const bool in_value : {false, true}) {
    Tokens<double> x = clean;
    (in_value ? x.v : x.k)(1, 1) = nan;
    const auto [y, g, report] = both_passes(attention, x, dy);
    for (Index i = 0; i < n; ++i) {
      const bool affected = i >= 1 && i <= 61;
      CHECK(std::isnan(y(i, 1)) == affected);
      CHECK(g.queries.row(i).array().isNaN().all() == affected);
      if (!affected) CHECK((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff() <= 1e-12);
    }
    CHECK(g.keys.row(0).array().isNaN().all());
    CHECK(g.keys.row(70).allFinite());
  }
}

TEST_CASE("with exact pairs no bit depends on later tokens or on the number of threads", "[attention]") {
  const Tokens<float> x = random_tokens<float>(700, 700, d, d_v, 31);
  for (const Index sinks : {0, 3}) {
    const Attention attention(
        positive<float>(), RelativePosition<float>(random_table<float>(700, 32)),
        {.direction = Direction::causal, .engine = Engine::block_causal, .near = 20, .sinks = sinks});
    const auto run = [&](int threads) {
      const Threads some(threads);
      return both_passes(attention, x, x.v);
    };
    const Passes<float> one = run(1), four = run(4);
    CHECK(same_bits(one.y, four.y));
    CHECK(same_bits(one.g, four.g));
    for (const Index kept : {1, 3, 64, 149}) {
      Tokens<float> other = random_tokens<float>(700, 700, d, d_v, 33);
      other.q.topRows(kept) = x.q.topRows(kept);
      other.k.topRows(kept) = x.k.topRows(kept);
      other.v.topRows(kept) = x.v.topRows(kept);
      CHECK(same_bits<float>(attention(other.q, other.k, other.v).topRows(kept), one.y.topRows(kept)));
    }
  }
}

TEST_CASE("calls without tokens or channels of values have a near field and sinks too", "[attention]") {
  for (const Index sinks : {0, 2}) {
    const Attention attention(positive<double>(), RelativePosition<double>(random_table<double>(9, 47)),
                              {.near = 2, .sinks = sinks});
    for (const Index n_q : {0, 4})
      for (const Index n_k : {0, 1, 5})
        for (const Index channels : {0, 2}) {
          const Tokens<double> x = random_tokens<double>(n_q, n_k, d, channels, 48);
          const auto [y, g, report] = both_passes(attention, x, Matrix<double>::Ones(n_q, channels));
          CHECK(y.rows() == n_q);
          CHECK((n_k > 0 || y.isZero(0)));
          CHECK(g.queries.allFinite());
          CHECK(g.keys.allFinite());
        }
  }
}

TEST_CASE("what has no sinks is refused", "[attention]") {
  check_invalid([] { Attention(positive<float>(), {.sinks = -1}); }, {"sinks", "expected 0 or more", "got -1"});
  check_invalid([] { Attention(EluFeatures<float>(d), {.sinks = 3}); }, {"sinks", "does not estimate exp", "got 3"});
}

}  // namespace nprf::test::attention_attention_sinks
