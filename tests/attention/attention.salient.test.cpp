// SPDX-License-Identifier: MIT
//
// Attention with salient keys, which are chosen by the sequence's queries.

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include "attention/exact_pairs_case.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/calibration/salient_rule.hpp"
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

namespace nprf::test::attention_attention_salient {

namespace {

constexpr Index n = 100, d = 5, d_v = 3;

template <Real T>
PositiveFeatures<T> positive() {
  return exact_pairs_map<T>(d);
}

TaylorFeatures<double> taylor() { return TaylorFeatures<double>({.input_dim = d, .directions = 3}); }

// q.k is large for these two keys alone, which all queries resemble
constexpr Index salient[] = {37, 71};
Tokens<double> tokens_with_salient_keys(std::uint64_t seed) {
  Tokens<double> x = random_tokens<double>(n, n, d, d_v, seed);
  x.q *= 0.3, x.k *= 0.3;
  x.q.col(0).array() += 2;
  for (const Index j : salient) {
    x.k.row(j).setZero();
    x.k(j, 0) = 6;
  }
  return x;
}

const AttentionOptions of_own_norms{.normalization = Normalization::none(), .near = 4, .salient = 2};

// that of tokens_with_salient_keys(), for other tokens
SalientRule rule_of_sample(double share = 0.02) {
  const Tokens<double> x = tokens_with_salient_keys(99);
  return salient_rule<double>(x.q, x.k, Normalization::none(), share);
}

AttentionOptions of_rule(AttentionOptions options, double share = 0.02) {
  options.normalization = Normalization::none();
  options.salient_rules = {rule_of_sample(share)};
  return options;
}

}  // namespace

TEST_CASE("attention with salient keys equals the formula, by every engine", "[attention]") {
  check_engines_of_maps({{4, 3, 6}, {0, 0, 1}, {0, 0, 20}, {9, 0, 40}, {0, 2, 300}});
}

TEST_CASE("the salient keys of a grid may be extra tokens", "[attention]") {
  constexpr Index height = 5, width = 7, E = 2, tokens = E + height * width;
  Tokens<double> x = random_tokens<double>(tokens, tokens, d, d_v, 5);
  x.q.col(0).array() += 3;
  x.k(1, 0) = 9;
  Matrix<double> extra = normal<double>(E, E + 2, 7);
  extra(1, 3) = -std::numeric_limits<double>::infinity();
  const GridPosition<double> grid(height, width, normal<double>(2 * height - 1, 2 * width - 1, 6), extra);
  for (const Index masked : {tokens, Index{0}, Index{4}}) {
    Mask mask = Mask::Constant(tokens, true);
    if (masked < tokens) mask[masked] = false;
    for (const Engine engine : {Engine::direct, Engine::grid})
      for (const auto [near, sinks, count] :
           std::vector<ExactPairsOptions>{{0, 0, 1}, {2, 0, 3}, {2, 1, 9}, {0, 0, 50}})
        CHECK(agrees(Attention(positive<double>(), grid,
                               {.normalization = Normalization::unit(1.2),
                                .engine = engine,
                                .near = near,
                                .sinks = sinks,
                                .salient = count}),
                     x, 0, mask));
  }
}

TEST_CASE("by a rule the first keys above the threshold are salient, by every engine", "[attention]") {
  Mask mask = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j != 0 && j % 7 != 3;
  const Tokens<double> x = tokens_with_salient_keys(3), cross = random_tokens<double>(n, 61, d, d_v, 4);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Engine engine : {Engine::automatic, Engine::direct, Engine::banded, Engine::lanes, Engine::block_causal})
      for (const auto& [near, sinks, count] : std::vector<ExactPairsOptions>{{0, 0, 1}, {4, 2, 9}, {0, 1, 60}}) {
        INFO("engine " << static_cast<int>(engine) << " near " << near << " sinks " << sinks << " salient " << count
                       << " direction " << static_cast<int>(direction));
        const AttentionOptions options =
            of_rule({.direction = direction, .engine = engine, .near = near, .sinks = sinks, .salient = count}, 0.3);
        const auto check = [&](const auto& position) {
          const Attention attention(positive<double>(), position, options);
          CHECK(agrees(attention, x));
          CHECK(agrees(attention, x, 0, mask));
          CHECK(agrees(attention, cross, -20));
        };
        check(RelativePosition<double>(0.3 * random_table<double>(40, 5)));
        check(AlibiPosition<double>(0.05));
      }
}

TEST_CASE("each head has a rule of its own", "[attention]") {
  constexpr Index heads = 2;
  const Tokens<double> x = random_tokens<double>(heads * n, heads * n, d, d_v, 16);
  Matrix<double> y(heads * n, d_v);
  const std::vector<RelativePosition<double>> positions(heads, RelativePosition<double>(random_table<double>(30, 17)));
  AttentionOptions options = of_rule({.direction = Direction::causal, .salient = 5}, 0.1);
  options.salient_rules.push_back(rule_of_sample(0.5));
  const MultiHeadAttention attention(positive<double>(), positions, options);
  attention(HeadsView<const double>{x.q.data(), 1, heads, n, d}, HeadsView<const double>{x.k.data(), 1, heads, n, d},
            HeadsView<const double>{x.v.data(), 1, heads, n, d_v}, HeadsView<double>{y.data(), 1, heads, n, d_v});
  for (Index h = 0; h < heads; ++h) {
    AttentionOptions of_head = options;
    of_head.salient_rules = {options.salient_rules[static_cast<std::size_t>(h)]};
    const Matrix<double> expected =
        reference::kernelized_attention(Attention(positive<double>(), positions[0], of_head), x.q.middleRows(h * n, n),
                                        x.k.middleRows(h * n, n), x.v.middleRows(h * n, n));
    CHECK((y.middleRows(h * n, n) - expected).cwiseAbs().maxCoeff() <= 1e-10);
  }
}

TEST_CASE("with a rule no bit of a causal row depends on later tokens", "[attention]") {
  const Tokens<double> x = tokens_with_salient_keys(31);
  const Attention attention(
      positive<double>(), RelativePosition<double>(random_table<double>(n, 32)),
      of_rule({.direction = Direction::causal, .engine = Engine::block_causal, .near = 5, .salient = 9}, 0.2));
  const Matrix<double> y = attention(x.q, x.k, x.v);
  for (const Index kept : {1, 38, 64, 99}) {
    Tokens<double> other = random_tokens<double>(n, n, d, d_v, 33);
    other.q.topRows(kept) = x.q.topRows(kept);
    other.k.topRows(kept) = x.k.topRows(kept);
    other.v.topRows(kept) = x.v.topRows(kept);
    CHECK(same_bits<double>(attention(other.q, other.k, other.v).topRows(kept), y.topRows(kept)));
  }
}

TEST_CASE("keys that features cannot represent are exact as salient ones", "[attention]") {
  const Tokens<double> x = tokens_with_salient_keys(12);
  const auto error = [&](Index count) {
    AttentionOptions options = of_own_norms;
    options.salient = count;
    Report report;
    Attention(taylor(), AlibiPosition<double>(0.01), options)(x.q, x.k, x.v, {.report = &report, .softmax_samples = n});
    return report.softmax_error;
  };
  CHECK(error(0) > 0.1);
  CHECK(error(1) > 0.1);
  CHECK(error(2) < 0.01);
  const auto causal_error = [&](Index count) {
    Report report;
    Attention(taylor(), AlibiPosition<double>(0.01),
              of_rule({.direction = Direction::causal, .near = 4, .salient = count}))(
        x.q, x.k, x.v, {.report = &report, .softmax_samples = n});
    return report.softmax_error;
  };
  CHECK(causal_error(0) > 0.1);
  CHECK(causal_error(2) < 0.01);
}

TEST_CASE("all keys as salient ones are softmax", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 10);
  const RelativePosition<double> position(random_table<double>(n, 11));
  for (const Index sinks : {0, 3}) {
    const Matrix<double> expected = reference::softmax_attention<double>(
                             x.q, x.k, x.v, position, Direction::bidirectional, Normalization::none()),
                         y = Attention(positive<double>(), position,
                                       {.normalization = Normalization::none(), .sinks = sinks, .salient = n - sinks})(
                             x.q, x.k, x.v);
    CHECK((y - expected).cwiseAbs().maxCoeff() <= 256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
  }
}

TEST_CASE("padding does not choose salient keys, nor is it one", "[attention]") {
  const Index length = 80;
  const Tokens<double> x = tokens_with_salient_keys(13);
  Tokens<double> padded = x;
  padded.q.bottomRightCorner(n - length, d - 1).setConstant(50);  // they would choose other keys
  padded.k.bottomRows(n - length).setConstant(9);
  const Attention attention(taylor(), AlibiPosition<double>(0.01), of_own_norms);
  const Matrix<double> expected = attention(x.q.topRows(length), x.k.topRows(length), x.v.topRows(length));
  Mask mask = Mask::Constant(n, true);
  mask.tail(n - length).setConstant(false);
  const std::vector<Index> lengths{length};
  const auto close = [&](const Matrix<double>& y) { return (y - expected).cwiseAbs().maxCoeff() <= 1e-10; };
  CHECK(close(attention(padded.q, padded.k, padded.v, {.lengths = lengths}).topRows(length)));
  CHECK(close(attention(padded.q, padded.k, padded.v, {.key_mask = view(mask)}).topRows(length)));
  // as queries they count
  CHECK(!close(attention(padded.q, x.k.topRows(length), x.v.topRows(length)).topRows(length)));
}

TEST_CASE("each packed sequence has salient keys of its own", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 8);
  const RelativePosition<double> position(random_table<double>(30, 9));
  const std::vector<Index> ends{0, 40, 41, 43, n};
  const Attention attention(positive<double>(), position, {.near = 2, .sinks = 1, .salient = 4});
  const Matrix<double> y = attention(x.q, x.k, x.v, {.cumulative_lengths = ends});
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
    const Index first = ends[s], count = ends[s + 1] - first;
    const Matrix<double> expected = reference::kernelized_attention(
        attention, x.q.middleRows(first, count), x.k.middleRows(first, count), x.v.middleRows(first, count));
    CHECK((y.middleRows(first, count) - expected).cwiseAbs().maxCoeff() <= 1e-11);
  }
}

TEST_CASE("each query head of a group chooses salient keys of its own", "[attention]") {
  constexpr Index heads = 3;
  const Tokens<double> x = random_tokens<double>(heads * n, n, d, d_v, 14);
  Matrix<double> y(heads * n, d_v);
  const AttentionOptions options{.near = 3, .salient = 5};
  const RelativePosition<double> position(random_table<double>(30, 15));
  const MultiHeadAttention attention(positive<double>(), position, options);
  attention(HeadsView<const double>{x.q.data(), 1, heads, n, d}, HeadsView<const double>{x.k.data(), 1, 1, n, d},
            HeadsView<const double>{x.v.data(), 1, 1, n, d_v}, HeadsView<double>{y.data(), 1, heads, n, d_v});
  for (Index h = 0; h < heads; ++h) {
    const Matrix<double> expected = reference::kernelized_attention(Attention(positive<double>(), position, options),
                                                                    x.q.middleRows(h * n, n), x.k, x.v);
    CHECK((y.middleRows(h * n, n) - expected).cwiseAbs().maxCoeff() <= 1e-11);
  }
}

TEST_CASE("gradients with salient keys are central differences", "[attention]") {
  constexpr Index few = 19;
  const Matrix<double> dy = normal<double>(few, 2, 20);
  Mask mask = Mask::Constant(few, true);
  for (Index j = 0; j < few; ++j) mask[j] = j % 6 != 1;
  const auto check = [&](const auto& map, const auto& make_position, const Matrix<double>& parameters,
                         AttentionOptions options, const Mask& keys) {
    const Tokens<double> x = random_tokens<double>(few, few, d, 2, 21);
    options.normalization = Normalization::unit(1.5);
    INFO("engine " << static_cast<int>(options.engine) << " near " << options.near << " salient " << options.salient);
    const auto attention_of = [&](const Matrix<double>& b) { return Attention(map, make_position(b), options); };
    check_differences(attention_of, parameters, x, dy, {.key_mask = view(keys)});
  };
  const auto relative = [](const Matrix<double>& b) { return RelativePosition<double>(Vector<double>(b.col(0))); };
  const Matrix<double> table = normal<double>(2 * few - 1, 1, 22);
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal})
    for (const Mask& keys : {Mask(), mask}) {
      check(positive<double>(), relative, table, {.engine = engine, .salient = 3}, keys);
      check(positive<double>(), relative, table, {.engine = engine, .near = 3, .sinks = 2, .salient = 4}, keys);
      check(taylor(), relative, table, {.engine = engine, .near = 2, .salient = 2}, keys);
    }
  const Matrix<double> b = normal<double>(7, 7, 24), extra = normal<double>(3, 5, 23);
  const auto grid = [&](const Matrix<double>& of) { return GridPosition<double>(4, 4, of, extra); };
  check(positive<double>(), grid, b, {.near = 2, .salient = 4}, mask);
  AttentionOptions causal{.direction = Direction::causal, .near = 2, .salient = 4};
  causal.salient_rules = {{std::vector<double>(d, 0.1), std::vector<double>(d * d, 0.1), 0.2}};
  check(positive<double>(), relative, table, causal, mask);
}

TEST_CASE("tokens that are not finite neither choose salient keys nor are salient", "[attention]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Tokens<double> clean = tokens_with_salient_keys(28);
  for (const double bad : {nan, inf}) {
    Tokens<double> x = clean;
    x.q.row(90).setConstant(bad);
    Tokens<double> without = clean;
    for (Index i = 90; i + 1 < n; ++i) without.q.row(i) = clean.q.row(i + 1);
    without.q.conservativeResize(n - 1, d);
    AttentionOptions options = of_own_norms;
    options.near = 0;
    const Attention attention(taylor(), NoPosition<double>(), options);
    const Matrix<double> y = attention(x.q, x.k, x.v), expected = attention(without.q, x.k, x.v);
    CHECK(y.row(90).array().isNaN().all());
    CHECK((y.topRows(90) - expected.topRows(90)).cwiseAbs().maxCoeff() <= 1e-10);
    CHECK((y.bottomRows(9) - expected.bottomRows(9)).cwiseAbs().maxCoeff() <= 1e-10);
  }
  Vector<double> b = random_table<double>(n, 29);
  for (Index l = 0; l < b.size(); ++l)
    if (std::abs(l - n) > 60) b[l] = -inf;  // farther than 60 tokens
  const Attention attention(taylor(), RelativePosition<double>(b), of_own_norms);
  const Matrix<double> expected = attention(clean.q, clean.k, clean.v);
  for (const double bad : {nan, inf, -inf}) {
    Tokens<double> x = clean;
    x.k(2, 0) = bad;
    const Matrix<double> y = attention(x.q, x.k, x.v);
    CHECK(y.topRows(63).array().isNaN().all());
    CHECK((y.bottomRows(n - 63) - expected.bottomRows(n - 63)).cwiseAbs().maxCoeff() <= 1e-10);
  }
}

TEST_CASE("with salient keys no bit depends on the number of threads", "[attention]") {
  const Tokens<float> x = random_tokens<float>(700, 700, d, d_v, 31);
  const Attention attention(positive<float>(), RelativePosition<float>(random_table<float>(700, 32)),
                            {.near = 20, .salient = 9});
  const auto run = [&](int threads) {
    const Threads some(threads);
    return both_passes(attention, x, x.v);
  };
  const Passes<float> one = run(1), four = run(4);
  CHECK(same_bits(one.y, four.y));
  CHECK(same_bits(one.g, four.g));
}

TEST_CASE("calls without tokens or channels of values have salient keys too", "[attention]") {
  const Attention attention(positive<double>(), RelativePosition<double>(random_table<double>(9, 47)),
                            {.near = 2, .salient = 2});
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

TEST_CASE("what has no salient keys is refused", "[attention]") {
  check_invalid([] { Attention(positive<float>(), {.salient = -1}); }, {"salient", "expected 0 or more", "got -1"});
  check_invalid([] { Attention(EluFeatures<float>(d), {.salient = 3}); },
                {"salient", "does not estimate exp", "got 3"});
  check_invalid([] { Attention(positive<float>(), {.direction = Direction::causal, .salient = 3}); },
                {"salient", "causal", "without salient_rules", "got 3"});
  const auto refused = [](std::vector<SalientRule> rules, std::initializer_list<std::string_view> words) {
    check_invalid([&] { Attention(positive<float>(), {.salient = 3, .salient_rules = rules}); }, words);
  };
  const std::vector<double> mean(d), covariance(d * d);
  const SalientRule rule{mean, covariance, 1};
  refused({rule, rule}, {"salient_rules", "got 2"});
  refused({{covariance, covariance, 1}}, {"salient_rules", "expected a mean of 5", "got 25"});
  refused({{mean, mean, 1}}, {"salient_rules", "a covariance of 25", "got 5, 5"});
  refused({{mean, covariance, std::numeric_limits<double>::quiet_NaN()}}, {"salient_rules", "threshold"});
}

}  // namespace nprf::test::attention_attention_salient
