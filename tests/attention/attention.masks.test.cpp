// SPDX-License-Identifier: MIT

// Padding: key_mask and lengths, forward and backward.

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_masks {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();
constexpr Index d = 3, m = 6;

using Relative = RelativePosition<double>;
using Padded = Attention<PositiveFeatures<double>, Relative>;

struct Setting {
  Index n_q, n_k, offset;
  AttentionOptions options;
};

// body for every engine and direction, self and cross attention, with and without an offset
template <class Body>
void for_each_setting(Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [n_q, n_k, offset] :
           std::vector<std::array<Index, 3>>{{1, 1, 0}, {40, 40, 0}, {150, 150, 0}, {20, 70, 30}, {60, 25, -4}}) {
        INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : " bidirectional") << " n_q "
                                       << n_q << " n_k " << n_k << " offset " << offset);
        body(Setting{n_q, n_k, offset, {.direction = direction, .engine = engine}});
      }
}

// a table for all lags; a clipped one; a window from 4 keys back to 2 ahead, with a hole
std::vector<Vector<double>> tables() {
  Vector<double> window = random_table<double>(5, 42);
  window[0] = window[4] = window[8] = window[9] = window[10] = never;
  return {random_table<double>(160, 40), random_table<double>(3, 41), window};
}

// masks: random, padding at the end, at the start, every other key, all but one key
std::vector<Mask> masks(Index n_k) {
  std::vector<Mask> masks(5, Mask::Constant(n_k, false));
  const Vector<double> coin = normal_vector<double>(n_k, 90);
  for (Index j = 0; j < n_k; ++j) {
    masks[0][j] = coin[j] > 0;
    masks[1][j] = j < n_k - n_k / 3;
    masks[2][j] = j >= n_k / 3;
    masks[3][j] = j % 2 == 0;
    masks[4][j] = j == n_k / 2;
  }
  return masks;
}

Matrix<double> masked_reference(const Padded& attention, Tokens<double> x, const Mask& mask, Index offset) {
  for (Index j = 0; j < mask.size(); ++j)
    if (!mask[j]) x.k.row(j).setZero(), x.v.row(j).setZero();
  return reference::kernelized_attention(attention, x.q, x.k, x.v, offset, [&](Index, Index j) { return mask[j]; });
}

Index empty_rows(const Padded& attention, const Setting& s, const Mask& mask) {
  Index empty = 0;
  for (Index i = 0; i < s.n_q; ++i) {
    bool attends = false;
    for (Index j = 0; j < s.n_k; ++j)
      attends = attends || (mask[j] && (s.options.direction == Direction::bidirectional || j <= i + s.offset) &&
                            attention.position().bias()[j - i - s.offset] > never);
    empty += !attends;
  }
  return empty;
}

void fill(Tokens<double>& x, const Mask& mask, double k, double v) {
  for (Index j = 0; j < mask.size(); ++j)
    if (!mask[j]) x.k.row(j).setConstant(k), x.v.row(j).setConstant(v);
}

using Result = Passes<double>;

Result run(const Padded& attention, const Tokens<double>& x, const CallOptions& call) {
  Result result = both_passes(attention, x, normal<double>(x.q.rows(), x.v.cols(), 77), call);
  CHECK(same_bits<double>(attention(x.q, x.k, x.v, call), result.y));
  return result;
}

}  // namespace

TEST_CASE("attention with a mask equals the reference without the masked keys", "[attention]") {
  for_each_setting([](const Setting& s) {
    const Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
    for (const Vector<double>& b : tables()) {
      const Padded attention(orf<double>(d, m, 7), Relative(b), s.options);
      for (const Mask& mask : masks(s.n_k)) {
        Report report;
        const Matrix<double> y =
            attention(x.q, x.k, x.v, {.key_mask = view(mask), .offset = s.offset, .report = &report});
        const Matrix<double> expected = masked_reference(attention, x, mask, s.offset);
        INFO("table of " << b.size() << ", " << mask.count() << " keys of " << s.n_k);
        // 2: the features of the reference omit another factor
        CHECK(worst_ratio(y, expected,
                          2 * attention_tolerance(attention, s.options.engine, x, expected, s.offset, mask)) <= 1);
        CHECK(report.empty_rows == empty_rows(attention, s, mask));
        CHECK(report.repaired_rows == 0);
        if (mask.any()) CHECK(report.engine == s.options.engine);
      }
    }
  });
}

TEST_CASE("without a position masked keys can be removed", "[attention]") {
  const Tokens<float> x = random_tokens<float>(300, 200, d, 2);
  for (const Engine engine : engines()) {
    const Attention attention(orf<float>(d, m, 7), NoPosition<float>(), {.engine = engine});
    for (const Mask& mask : masks(200)) {
      const Matrix<float> y = attention(x.q, x.k, x.v, {.key_mask = view(mask)});
      const Matrix<float> expected = attention(x.q, pick(x.k, unmasked_keys(mask)), pick(x.v, unmasked_keys(mask)));
      INFO(std::string(name(engine)) << " " << mask.count());
      CHECK(worst_ratio(y, expected, 2 * attention_tolerance(attention, engine, x, expected, 0, mask)) <= 1);
    }
  }
}

TEST_CASE("padding is not read and has the gradient 0", "[attention]") {
  const std::vector<std::pair<double, double>> fillings{{NAN, NAN}, {-never, never}, {1e300, 1e300}, {0, 0}};
  for_each_setting([&](const Setting& s) {
    const Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
    const Padded attention(orf<double>(d, m, 7), Relative(tables()[2]), s.options);
    for (const Mask& mask : masks(s.n_k)) {
      const CallOptions call{.key_mask = view(mask), .offset = s.offset};
      const Result clean = run(attention, x, call);
      INFO(mask.count() << " keys of " << s.n_k);
      CHECK(clean.y.allFinite());
      for (Index j = 0; j < s.n_k; ++j)
        if (!mask[j]) CHECK((all_zero(clean.g.keys.row(j)) && all_zero(clean.g.values.row(j))));
      for (const auto& [k, v] : fillings) {
        Tokens<double> filled = x;
        fill(filled, mask, k, v);
        INFO("filled with " << k);
        CHECK(same_bits(run(attention, filled, call), clean));
      }
    }
  });
}

TEST_CASE("a length equals the mask of a prefix", "[attention]") {
  for_each_setting([](const Setting& s) {
    Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
    const Padded attention(orf<double>(d, m, 7), Relative(tables()[0]), s.options);
    for (const Index length : {Index{0}, Index{1}, s.n_k / 2, s.n_k - 1, s.n_k}) {
      Mask prefix = Mask::Constant(s.n_k, false), holes = masks(s.n_k)[0], both;
      prefix.head(length).setConstant(true);
      both = prefix && holes;
      fill(x, prefix, std::numeric_limits<double>::quiet_NaN(), never);
      const std::vector<Index> lengths{length};
      INFO("length " << length);
      CHECK(same_bits(run(attention, x, {.lengths = lengths, .offset = s.offset}),
                      run(attention, x, {.key_mask = view(prefix), .offset = s.offset})));
      CHECK(same_bits(run(attention, x, {.key_mask = view(holes), .lengths = lengths, .offset = s.offset}),
                      run(attention, x, {.key_mask = view(both), .offset = s.offset})));
    }
  });
}

TEST_CASE("results do not depend on the length of the padding", "[attention]") {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Index n = 50;
      const Tokens<double> x = random_tokens<double>(n, n, d, 2);
      const Padded attention(orf<double>(d, m, 7), Relative(tables()[0]), {.direction = direction, .engine = engine});
      const Matrix<double> alone = attention(x.q, x.k, x.v);
      const Matrix<double> tolerance = attention_tolerance(attention, engine, x, alone);
      for (const Index padding : {1, 13, 100}) {
        Matrix<double> q(n + padding, d), k = q, v(n + padding, 2);
        q << x.q, normal<double>(padding, d, 5);
        k << x.k, Matrix<double>::Constant(padding, d, NAN);
        v << x.v, Matrix<double>::Constant(padding, 2, NAN);
        const std::vector<Index> lengths{n};
        const Matrix<double> y = attention(q, k, v, {.lengths = lengths});
        INFO(std::string(name(engine)) << " padding " << padding);
        CHECK(worst_ratio(y.topRows(n), alone, 2 * tolerance) <= 1);
        CHECK(y.allFinite());  // queries beside padded keys attend to the others too
      }
    }
}

TEST_CASE("a mask that is all true changes no bit", "[attention]") {
  for_each_setting([](const Setting& s) {
    const Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
    for (const Vector<double>& b : tables()) {
      const Padded attention(orf<double>(d, m, 7), Relative(b), s.options);
      const Mask all = Mask::Constant(s.n_k, true);
      const std::vector<Index> lengths{s.n_k};
      const Result plain = run(attention, x, {.offset = s.offset});
      CHECK(same_bits(run(attention, x, {.key_mask = view(all), .offset = s.offset}), plain));
      CHECK(same_bits(run(attention, x, {.lengths = lengths, .offset = s.offset}), plain));
    }
  });
}

TEST_CASE("if all keys are masked, rows are zero and counted, and gradients are zero", "[attention]") {
  for_each_setting([](const Setting& s) {
    Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
    const Mask none = Mask::Constant(s.n_k, false);
    const std::vector<Index> lengths{0};
    fill(x, none, NAN, NAN);
    for (const Vector<double>& b : tables()) {
      const Padded attention(orf<double>(d, m, 7), Relative(b), s.options);
      for (const CallOptions& call : {CallOptions{.key_mask = view(none), .offset = s.offset},
                                      CallOptions{.lengths = lengths, .offset = s.offset}}) {
        const Result result = run(attention, x, call);
        CHECK(all_zero(result.y));
        CHECK(result.report.empty_rows == s.n_q);
        CHECK(result.report.repaired_rows == 0);
        CHECK(result.report.indefinite_rows == 0);
        CHECK(result.report.engine == Engine::automatic);  // nothing to compute
        CHECK((result.g.queries.rows() == s.n_q && all_zero(result.g.queries)));
        CHECK((result.g.keys.rows() == s.n_k && all_zero(result.g.keys)));
        CHECK((result.g.values.rows() == s.n_k && all_zero(result.g.values)));
        CHECK((result.g.bias.rows() == b.size() && all_zero(result.g.bias)));
      }
    }
  });
}

namespace {

void check_gradients(const Vector<double>& b, const Setting& s, const Mask& mask, Index repaired) {
  const Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, 2);
  INFO(std::string(name(s.options.engine))
       << (s.options.direction == Direction::causal ? " causal" : "") << " n_q " << s.n_q << " n_k " << s.n_k
       << " offset " << s.offset << " table of " << b.size() << ", " << mask.count() << " keys");
  const auto make = [&](const Matrix<double>& table) {
    return Padded(orf<double>(d, m, 7), Relative(table.col(0)), s.options);
  };
  const CallOptions call{.key_mask = view(mask), .offset = s.offset};
  const Result result = check_differences(make, b, x, normal<double>(s.n_q, 2, 77), call);
  CHECK(same_bits<double>(make(b)(x.q, x.k, x.v, call), result.y));
  CHECK(result.report.repaired_rows >= repaired);
}

}  // namespace

TEST_CASE("gradients with padding are central differences", "[attention]") {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [n_q, n_k, offset] : std::vector<std::array<Index, 3>>{{9, 9, 0}, {4, 12, 2}, {11, 5, -1}})
        for (const Mask& mask : masks(n_k)) {
          const Setting s{n_q, n_k, offset, {.direction = direction, .engine = engine}};
          check_gradients(normal_vector<double>(25, 51), s, mask, 0);
          check_gradients(tables()[2], s, mask, 0);
        }
}

TEST_CASE("rows keep their precision if the keys with almost all weight are masked", "[attention]") {
  // keys at multiples of 6 have e^800 times the weight of the others, and are masked: all sums underflow in that scale
  const Index n = 24;
  Vector<double> b = normal_vector<double>(2 * n - 1, 5);
  for (Index lag = -(n - 1); lag < n; ++lag)
    if (lag % 6 == 0) b[n - 1 + lag] += 800;
  Mask mask(n);
  for (Index j = 0; j < n; ++j) mask[j] = j % 6 == 2;
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index offset : {0, 2}) {
      const Setting s{n, n, offset, {.direction = direction, .engine = Engine::direct}};
      const Padded attention(orf<double>(d, m, 7), Relative(b), s.options);
      const Tokens<double> x = random_tokens<double>(n, n, d, 2);
      Report report;
      const Matrix<double> y = attention(x.q, x.k, x.v, {.key_mask = view(mask), .offset = offset, .report = &report});
      // every sixth position attends to a key at a multiple of 6; causal positions 0 and 1 attend to no key
      const Index num_empty = direction == Direction::causal && offset == 0 ? 2 : 0;
      INFO("offset " << offset << (direction == Direction::causal ? " causal" : ""));
      CHECK(report.empty_rows == num_empty);
      CHECK(report.repaired_rows == n - 4 - num_empty);
      // values are at most 4, and exponents of up to 800 have errors of 800 eps
      CHECK(worst_ratio(y, masked_reference(attention, x, mask, offset), 4 * 800 * epsilon<double>) <= 1);
      check_gradients(b, s, mask, n - 6);
    }
}

// weights decrease with distance: queries far from all remaining keys have tiny weights beside others
TEST_CASE("automatic selects no FFT if gaps between keys give some rows far smaller weights", "[attention]") {
  const Index n = 3000;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  Mask gap = Mask::Constant(n, true);
  gap.segment(300, 2400) = false;
  const std::array<Index, 1> length{600};
  const auto map = orf<float>(d, 4, 7);
  for (const float slope : {1e-4f, 0.02f}) {
    // as a table, for which the linear engines are not admissible
    Vector<float> b(2 * n - 1);
    for (Index k = 0; k < b.size(); ++k) b[k] = -slope * static_cast<float>(std::abs(k - (n - 1)));
    const RelativePosition<float> position(b);
    const Attention automatic(map, position), direct(map, position, {.engine = Engine::direct});
    for (CallOptions call : {CallOptions{}, CallOptions{.key_mask = view(gap)}, CallOptions{.lengths = length}}) {
      Report report;
      Saved<float> saved, exact;
      call.report = &report;
      const Matrix<float> y = automatic.forward(x.q, x.k, x.v, saved, call);
      const bool unbalanced = slope > 0.01f && (!call.key_mask.empty() || !call.lengths.empty());
      INFO("slope " << slope << " keys masked " << !call.key_mask.empty() << " length " << !call.lengths.empty());
      CHECK(report.engine == (unbalanced ? Engine::direct : Engine::lanes));
      call.report = nullptr;
      const Matrix<float> expected = direct.forward(x.q, x.k, x.v, exact, call);
      if (!unbalanced) continue;
      CHECK(same_bits<float>(y, expected));
      CHECK(same_bits<float>(automatic.backward(saved, x.v).queries, direct.backward(exact, x.v).queries));
    }
  }
}

}  // namespace nprf::test::attention_masks
