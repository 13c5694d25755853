// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/decode_plan.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/decode_case.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/curve.hpp"
#include "nprf/position/kerple.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// The rows of DecodePlan are those of the CPU's Decoder.
namespace nprf::test::cuda_plan_decode_plan {

namespace {

using T = float;
constexpr Index d = 6, d_v = 5;
constexpr T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();

DecodePosition alibi_as_table() {
  Vector<T> falling(2 * 400 + 1);
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.5) * static_cast<T>(std::abs(l - 400));
  return {"ALiBi as a table", RelativePosition<T>(falling)};
}

std::vector<DecodePosition> all_positions() {
  Vector<T> none_yet = random_table<T>(9, 8);
  none_yet.segment(9 - 2, 3).setConstant(-infinity);  // of the last three tokens
  return {{"none", NoPosition<T>()},
          of_alibi(T(0.2)),
          of_alibi(T(-0.2)),
          of_t5(),
          {"clipped table", RelativePosition<T>(T(0.5) * random_table<T>(11, 3))},
          of_window(9),
          alibi_as_table(),
          {"table longer than the sequence", RelativePosition<T>(T(0.3) * random_table<T>(70, 5))},
          {"no weight for the last tokens", RelativePosition<T>(none_yet)}};
}

// whether y is that of float, rounded to S, for inputs of S
template <class S>
bool rounds_only_storage(const DecodeModel& model, TokenBatch<T>& x) {
  const Index n = x.q.view.tokens;
  const auto as_stored = [](Matrix<T>& a) {
    std::vector<S> values = stored<S>(a);
    a = as_floats(values, a.rows(), a.cols());
    return values;
  };
  const DeviceArray<S> q(as_stored(x.q.values)), k(as_stored(x.k.values)), v(as_stored(x.v.values)),
      y(static_cast<std::size_t>(n * d_v));
  cuda::DecodePlan<S> plan(model.model, {.d_v = d_v});
  plan.step({q.data(), n, d}, {k.data(), n, d}, {v.data(), n, d_v}, {y.data(), n, d_v});
  const Matrix<T> expected = rows_of_steps(model.model, x);
  return same_bits(as_floats(y.fetch(), n, d_v), as_floats(stored<S>(expected), n, d_v));
}

}  // namespace

TEST_CASE("decoding on a GPU: the rows of each position, with near fields and sinks", "[cuda]") {
  constexpr Index n = 36;
  for (const DecodePosition& position : all_positions())
    for (const ExactTokens exact : {ExactTokens{0, 0}, {1, 0}, {13, 0}, {0, 1}, {0, 12}, {5, 3}, {3, 100}, {100, 2}}) {
      TokenBatch<T> x(2, 1, 1, n, d, d_v, 7);
      const ComparedSteps compared = compare_after_prompts(
          {std::vector{orf<T>(d, 16, 3)}, {position}, 2, {.near = exact.near, .sinks = exact.sinks}}, x, {9, 4});
      INFO(text(position, exact));
      CHECK(compared.special == 0);
      CHECK(compared.different == 0);
      CHECK(compared.rows == 2 * (n - 9));
    }
}

TEST_CASE("decoding on a GPU: the rows of each feature map, with near fields and sinks", "[cuda]") {
  constexpr Index n = 30;
  for (const ExactTokens exact : {ExactTokens{0, 0}, {4, 3}}) {
    const bool has_exact = exact.near > 0;
    // the rows whose terms cancel are others on the CPU
    const auto check = [&](const auto& map, Normalization normalization, Index special) {
      Index all = 0;
      for (const DecodePosition& position : {of_alibi(T(0.1)), of_t5(), of_window(7)}) {
        const AttentionOptions options{.normalization = normalization, .near = exact.near, .sinks = exact.sinks};
        TokenBatch<T> x(2, 1, 1, n, d, d_v, 7);
        const ComparedSteps compared = compare_after_prompts({std::vector{map}, {position}, 2, options}, x, {9, 4});
        INFO(text(position, exact));
        CHECK(compared.special <= special);
        CHECK(compared.different <= compared.special);
        if (has_exact) CHECK(compared.failing == compared.special);
        CHECK(compared.rows == 2 * (n - 9));
        all += compared.special;
      }
      return all;
    };
    check(orf<T>(d, 300, 3), Normalization::unit(), 0);  // more features than threads
    check(orf<T>(d, 16, 3), Normalization::none(), 0);
    check(HyperbolicFeatures<T>(orf<T>(d, 16, 3).projection()), Normalization::unit(2), 0);
    check(trf<T>(d, 100, 3), Normalization::unit(0.5), 0);
    check(TaylorFeatures<T>({.input_dim = d, .directions = 3}), Normalization::unit(), has_exact ? 0 : 4);
    check(Centred(TaylorFeatures<T>({.input_dim = d, .directions = 3}), centring<T>(d)), Normalization::none(),
          has_exact ? 0 : 10);
    check(Centred(orf<T>(d, 20, 3), centring<T>(d)), Normalization::unit(), 0);
    if (has_exact)
      CHECK(check(trf<T>(d, 8, 3), Normalization::unit(1.5), 9) > 0);  // too few features for that norm
    else
      check(EluFeatures<T>(d), Normalization::none(), 0);
  }
}

TEST_CASE("decoding on a GPU: a map and a position for each head", "[cuda]") {
  const std::vector maps{orf<T>(d, 16, 3), orf<T>(d, 16, 4), orf<T>(d, 16, 5)};
  Vector<T> table = T(0.5) * random_table<T>(11, 3), clipped = table, cut = table;
  clipped.head(6).setConstant(table[0]);  // its reach is shorter
  cut.head(4).setConstant(-infinity);
  const std::vector<DecodePosition> positions{{"table", RelativePosition<T>(table)},
                                              {"clipped", RelativePosition<T>(clipped)},
                                              {"window", RelativePosition<T>(cut)}};
  TokenBatch<T> x(2, 3, 3, 40, d, 70, 7);  // more channels than a warp has lanes, and than are computed at a time
  const ComparedSteps compared = compare_after_prompts({maps, positions, 2}, x, {0, 3});
  CHECK(compared.different == 0);
  CHECK(compared.special == 0);
}

TEST_CASE("decoding on a GPU: log-scales that change by hundreds, also beside exact weights", "[cuda]") {
  constexpr Index n = 50;
  const auto check = [](Index m, const ExactTokens& exact, const DecodePosition& position, bool grow) {
    const bool has_exact = exact.near > 0;
    const AttentionOptions options{.normalization = Normalization::none(), .near = exact.near, .sinks = exact.sinks};
    TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
    // exp(-|k|^2 / 2) is a factor of the features of k, and exp(q.k) the weight of an exact key
    for (Index t = 0; t < n; ++t)
      x.k.values.row(t) *= (has_exact ? 20 : 40) * static_cast<T>(grow ? n - t : t + 1) / n / x.k.values.row(t).norm();
    const ComparedSteps compared =
        compare_after_prompts({std::vector{orf<T>(d, m, 3)}, {position}, 1, options}, x, {0});
    INFO(text(position, exact) << ", " << m << " features" << (grow ? ", growing" : ", falling"));
    CHECK(compared.different <= compared.special);
    CHECK(compared.special <= (has_exact ? 0 : n / 2));
  };
  for (const ExactTokens exact : {ExactTokens{0, 0}, {4, 2}})
    for (const bool grow : {true, false})
      for (const DecodePosition& position : {of_alibi(0), of_alibi(T(0.3)), of_t5()}) check(16, exact, position, grow);
  for (const bool grow : {true, false}) check(1, {0, 0}, of_alibi(0), grow);  // some of them far below 1
}

TEST_CASE("decoding on a GPU: the rounding errors of many tokens do not add up", "[cuda]") {
  constexpr Index n = 1500;
  constexpr T eps = std::numeric_limits<T>::epsilon();
  TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
  const Matrix<T> k = x.k.values.topRows(1), v = x.v.values.topRows(1);
  x.k.values = k.replicate(n, 1), x.v.values = v.replicate(n, 1);
  const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {{"none", NoPosition<T>()}});
  const DecodeCase on_device(x);
  cuda::DecodePlan<T> plan(model.model, on_device.shape());
  on_device.append(plan, 0, n - 1);
  on_device.step(plan, n - 1, 1);
  // the roundings of a term, and of sums over 16 features, in N and in D
  CHECK((on_device.y().bottomRows(1) - v).cwiseAbs().maxCoeff() <= 16 * eps * v.cwiseAbs().maxCoeff());
}

TEST_CASE("decoding on a GPU: bits do not depend on the division of the tokens or on other sequences", "[cuda]") {
  constexpr Index n = 24;
  for (const DecodePosition& position : {of_t5(), of_alibi(T(0.1))}) {
    TokenBatch<T> x(2, 2, 2, n, d, d_v, 7);
    const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {position});
    const DecodeCase at_once(x), divided(x);
    cuda::DecodePlan<T> plan(model.model, at_once.shape()), other(model.model, divided.shape());
    at_once.step(plan, 0, n);
    divided.step(other, 0, 1);
    divided.append(other, 1, 9);
    const DeviceArray<int> second_alone(std::vector<int>{0, 2}), first_alone(std::vector<int>{2, 0});
    divided.step(other, 10, 2, {.lengths = second_alone.data()});
    const Matrix<T> before = divided.y();
    CHECK(before.row(10).isZero(0));
    divided.step(other, 10, 2, {.lengths = first_alone.data()});
    divided.step(other, 12, n - 12);
    const Matrix<T> a = at_once.y(), b = divided.y();
    for (Index z = 0; z < 4; ++z) {
      CHECK(same_bits<T>(a.row(z * n), b.row(z * n)));
      CHECK(same_bits<T>(a.middleRows(z * n + 10, 2), (z < 2 ? b : before).middleRows(z * n + 10, 2)));
      CHECK(same_bits<T>(a.middleRows(z * n + 12, n - 12), b.middleRows(z * n + 12, n - 12)));
    }
    // a sequence that was reset, next to one that was not
    plan.reset(1, nullptr);
    const DeviceArray<int> second(std::vector<int>{0, static_cast<int>(n)});
    at_once.step(plan, 0, n, {.lengths = second.data()});
    CHECK(same_bits<T>(at_once.y().bottomRows(2 * n), a.bottomRows(2 * n)));
  }
}

TEST_CASE("decoding on a GPU: tokens beyond max_tokens", "[cuda]") {
  constexpr Index n = 30, most = 12;
  for (const DecodePosition& position :
       {DecodePosition("table", RelativePosition<T>(T(0.3) * random_table<T>(40, 5))), of_alibi(T(0.1)),
        alibi_as_table(),  // a line, as no sequence outgrows the table
        DecodePosition("curve", CurvePosition<T, KerpleLog>(KerpleLog(1, 0.5), most - 1))}) {
    TokenBatch<T> x(2, 1, 1, n, d, d_v, 7);
    DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {position}, 2);
    const DecodeCase on_device(x);
    cuda::DecodePlan<T> plan(model.model, on_device.shape(most));
    if (!position.model.is_bounded) CHECK(plan.bytes() <= cuda::DecodePlan<T>(model.model, on_device.shape()).bytes());
    const DeviceArray<int> first_alone(std::vector<int>{most - 2, 0});
    x.prefill(model.decoder, 0, most - 2, {.lengths = std::vector<Index>{most - 2, 0}});
    on_device.append(plan, 0, most - 2, {.lengths = first_alone.data()});
    // sequence 0 exceeds its limit after 2 tokens, and sequence 1 after 12
    double bound = 0;
    for (Index t = most - 2; t < n; ++t) {
      Report report;
      x.step(model.decoder, t, 1, {.report = &report});
      bound = std::max(bound, report.error_bound);
      on_device.step(plan, t, 1);
    }
    const Matrix<T> y = on_device.y();
    for (Index b = 0; b < 2; ++b)
      for (Index t = most - 2; t < n; ++t) {
        const bool fits = t < (b == 0 ? most : 2 * most - 2);
        const Index row = b * n + t;
        INFO(position.name << ", sequence " << b << ", token " << t);
        if (fits)
          CHECK(static_cast<double>((y.row(row) - x.y.values.row(row)).cwiseAbs().maxCoeff()) <=
                2 * bound * static_cast<double>(x.v.values.cwiseAbs().maxCoeff()));
        else
          CHECK(y.row(row).array().isNaN().all());
      }
    CHECK(plan.host_counts().rejected_tokens == n - most + n - (2 * most - 2));
    plan.reset();
    CHECK(plan.host_counts().rejected_tokens == 0);
    on_device.step(plan, 0, most);
    CHECK(on_device.y().topRows(most).allFinite());
  }
}

TEST_CASE("decoding on a GPU: rows without keys, and rows that underflow", "[cuda]") {
  constexpr Index n = 12;
  TokenBatch<T> x(1, 2, 2, n, d, d_v, 7);
  Vector<T> table = Vector<T>::Constant(2 * 4 + 1, 0);
  table.segment(4 - 2, 3).setConstant(-infinity);
  const DecodeModel late(std::vector{orf<T>(d, 16, 3)}, {{"from three tokens on", RelativePosition<T>(table)}});
  const DecodeCase on_device(x);
  cuda::DecodePlan<T> plan(late.model, on_device.shape());
  on_device.step(plan, 0, n);
  const Matrix<T> y = on_device.y();
  CHECK(plan.host_counts().empty_rows == 2 * 3);
  for (Index z = 0; z < 2; ++z) {
    CHECK(y.middleRows(z * n, 3).isZero(0));
    CHECK((y.middleRows(z * n + 3, n - 3).array() != 0).all());
  }

  // two features; q has one of them, and keys the other one
  cuda::AttentionModel model{Direction::causal, 0, {{cuda::FeatureKind::positive, 1, 2, {100, -100}}}, {{}}};
  TokenBatch<T> opposed(1, 1, 1, 2, 1, d_v, 7);
  opposed.q.values.setConstant(1), opposed.k.values.setConstant(-1);
  const DecodeCase of_opposed(opposed);
  cuda::DecodePlan<T> failing(model, of_opposed.shape());
  of_opposed.step(failing, 0, 2);
  CHECK(failing.host_counts().failing_rows == 2);
  CHECK(of_opposed.y().array().isNaN().all());
}

TEST_CASE("decoding on a GPU: non-finite tokens, also among exact keys", "[cuda]") {
  constexpr Index n = 30, reach = 9;
  struct Case {
    ExactTokens exact;
    Normalization normalization;
  };
  for (const Case& of :
       {Case{{0, 0}, Normalization::unit()}, {{4, 3}, Normalization::unit()}, {{4, 3}, Normalization::none()}})
    for (const bool has_tail : {true, false})
      for (const Index at : {1, 6}) {  // a sink, and a token that is only near
        const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {has_tail ? of_t5() : of_window(reach)}, 1,
                                {.normalization = of.normalization, .near = of.exact.near, .sinks = of.exact.sinks});
        TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
        const Matrix<T> finite = rows_of_steps(model.model, x);
        CHECK(finite.allFinite());
        const Index last = has_tail ? n : at + reach;  // ages up to the reach have weights
        for (const T bad : {nan, infinity, -infinity})
          for (auto* const matrix : {&x.q.values, &x.k.values, &x.v.values}) {
            const T before = std::exchange((*matrix)(at, 2), bad);
            const bool is_query = matrix == &x.q.values, is_value = matrix == &x.v.values;
            check_nonfinite_rows(model.model, x, finite, at, is_query ? at : last,
                                 [&](Index c) { return !is_value || c == 2; });
            (*matrix)(at, 2) = before;
          }
      }
}

TEST_CASE("decoding on a GPU: arrays of half and bfloat16", "[cuda]") {
  TokenBatch<T> x(1, 1, 1, 12, d, d_v, 7);
  for (const Index exact : {0, 2}) {
    const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {of_t5()}, 1, {.near = exact, .sinks = exact});
    CHECK(rounds_only_storage<__half>(model, x));
    CHECK(rounds_only_storage<__nv_bfloat16>(model, x));
  }
}

TEST_CASE("decoding on a GPU: what is refused", "[cuda]") {
  const auto model = [] {
    return cuda::AttentionModel{Direction::causal, 1, {cuda::model_of(orf<T>(d, 8, 3))}, {of_alibi(1).model}};
  };
  const auto make = [](const cuda::AttentionModel& m, const cuda::DecodeShape& shape) {
    cuda::DecodePlan<T>(m, shape);
  };
  cuda::AttentionModel bidirectional = model(), near = model(), sinks = model(), grid = model(), two = model(),
                       empty = model(), elu = model(), curve = model();
  bidirectional.direction = Direction::bidirectional;
  check_invalid([&] { make(bidirectional, {.d_v = d_v}); }, {"direction", "causal", "bidirectional"});
  near.near = -1, sinks.sinks = std::ptrdiff_t{1} << 29;
  check_invalid([&] { make(near, {.d_v = d_v}); }, {"near", "expected 0", "-1"});
  check_invalid([&] { make(sinks, {.d_v = d_v}); }, {"sinks", "expected 0 to 2^28", "536870912"});
  elu.features = {cuda::model_of(EluFeatures<T>(d))}, elu.near = 3;
  check_invalid([&] { make(elu, {.d_v = d_v}); }, {"near", "elu"});
  grid.positions.front().slots = {0, 1};
  check_invalid([&] { make(grid, {.d_v = d_v}); }, {"position", "grid"});
  curve.positions = {cuda::model_of(CurvePosition<T, KerpleLog>(KerpleLog(1, 0.5), 7))};
  check_invalid([&] { make(curve, {.d_v = d_v}); }, {"max_tokens", "1 to 8", "got 0"});
  check_invalid([&] { make(curve, {.d_v = d_v, .max_tokens = 9}); }, {"max_tokens", "1 to 8", "got 9"});
  two.positions.push_back(of_alibi(2).model);
  check_invalid([&] { make(two, {.heads = 3, .d_v = d_v}); }, {"positions", "1 or 3", "got 2"});
  empty.features.clear();
  check_invalid([&] { make(empty, {.d_v = d_v}); }, {"feature maps", "none"});
  check_invalid([&] { make(model(), {.heads = 4, .d_v = d_v, .heads_k = 3}); }, {"heads_k", "divisor of 4", "got 3"});
  check_invalid([&] { make(model(), {.batch = 0, .d_v = d_v}); }, {"batch", "at least 1", "0"});
  check_invalid([&] { make(model(), {.d_v = d_v, .max_tokens = -1}); }, {"max_tokens", "-1"});

  cuda::DecodePlan<T> plan(model(), {.batch = 2, .heads = 3, .d_v = d_v});
  const DeviceArray<T> memory(std::size_t{2 * 3 * 4 * 8});
  const auto view = [&](Index tokens, Index channels) {
    return cuda::DeviceMatrixView<T>(memory.data(), 2, 3, tokens, channels);
  };
  check_invalid([&] { plan.append(view(4, d + 1), view(4, d_v)); }, {"k", "2 x 3 x 4 x 6"});
  check_invalid([&] { plan.append(view(4, d), view(3, d_v)); }, {"v", "2 x 3 x 4 x 5"});
  check_invalid([&] { plan.step(view(1, d), view(4, d), view(4, d_v), view(4, d_v)); }, {"q", "2 x 3 x 4 x 6"});
  check_invalid([&] { plan.step(view(4, d), view(4, d), view(4, d_v), view(4, d)); }, {"y", "2 x 3 x 4 x 5"});
  check_invalid([&] { plan.reset(2, nullptr); }, {"sequence", "0 to 1", "2"});
  plan.append(view(0, d), view(0, d_v));  // no tokens

  cuda::DecodePlan<T> grouped(model(), {.batch = 2, .heads = 6, .d_v = d_v, .heads_k = 3});
  check_invalid([&] { grouped.step(view(1, d), view(1, d), view(1, d_v), view(1, d_v)); }, {"q", "2 x 6 x 1 x 6"});
  cuda::DecodePlan<T> of_one_key(model(), {.batch = 2, .heads = 3, .d_v = d_v, .heads_k = 1});
  check_invalid([&] { of_one_key.append(view(1, d), view(1, d_v)); }, {"k", "2 x 1 x 1 x 6"});
}

}  // namespace nprf::test::cuda_plan_decode_plan
