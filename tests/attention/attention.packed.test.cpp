// SPDX-License-Identifier: MIT

// Packed sequences: cumulative_lengths and key_cumulative_lengths, forward and backward.

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_packed {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();
constexpr Index d = 3, m = 6;

using Relative = RelativePosition<double>;
using Packed = Attention<PositiveFeatures<double>, Relative>;
using Lengths = std::vector<Index>;

struct Packing {
  Lengths q, k;  // k empty: as q

  const Lengths& keys() const { return k.empty() ? q : k; }
};

// one sequence; several; of one token; empty ones at the start, between others and at the end; all but one empty
std::vector<Packing> packings() {
  return {{{0, 20}, {}},
          {{0, 5, 6, 30, 171, 200}, {}},
          {{0, 0, 4, 4, 4, 9, 10, 11, 11}, {}},
          {{0, 0, 0, 7, 7}, {}},
          {{0, 5, 6, 30, 31}, {0, 8, 140, 141, 150}},  // cross attention
          {{0, 5, 5, 9, 12}, {0, 0, 3, 3, 10}}};       // no keys for the first and the third, no queries for the second
}

Packed make(const AttentionOptions& options, Index reach) {
  Vector<double> b = random_table<double>(reach, 40);
  b[reach + 1] = b[reach - 1] = never;  // no token attends to its neighbours
  return Packed(orf<double>(d, m, 7), Relative(b), options);
}

template <class Body>
void for_each_packing(Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Packing& packing : packings())
        for (const Index offset : {0, 2, -3}) {
          std::string ends;
          for (const Index end : packing.q) ends.append(" ").append(std::to_string(end));
          INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : " bidirectional")
                                         << " offset " << offset << ", packed" << ends
                                         << (packing.k.empty() ? "" : ", keys their own"));
          body(packing, offset, AttentionOptions{.direction = direction, .engine = engine});
        }
}

Tokens<double> tokens(const Packing& packing) {
  return random_tokens<double>(packing.q.back(), packing.keys().back(), d, 2);
}

// sequence s as a separate call
struct Alone {
  Alone(const Packing& packing, std::size_t s)
      : q0(packing.q[s]), n_q(packing.q[s + 1] - q0), k0(packing.keys()[s]), n_k(packing.keys()[s + 1] - k0) {}

  Tokens<double> of(const Tokens<double>& x) const {
    return {x.q.middleRows(q0, n_q), x.k.middleRows(k0, n_k), x.v.middleRows(k0, n_k)};
  }
  Matrix<double> queries(const Matrix<double>& x) const { return x.middleRows(q0, n_q); }
  Matrix<double> keys(const Matrix<double>& x) const { return x.middleRows(k0, n_k); }

  Index q0, n_q, k0, n_k;
};

void check_alike(const Packed& attention, const Packing& packing, Index offset, const Mask& mask) {
  const Tokens<double> x = tokens(packing);
  const Matrix<double> dy = normal<double>(x.q.rows(), 2, 77);
  const CallOptions call{
      .key_mask = view(mask), .cumulative_lengths = packing.q, .key_cumulative_lengths = packing.k, .offset = offset};
  const auto [y, g, report] = both_passes(attention, x, dy, call);
  CHECK(same_bits(attention(x.q, x.k, x.v, call), y));

  Report sum;
  Matrix<double> bias = Matrix<double>::Zero(g.bias.rows(), 1), size = bias;
  for (std::size_t s = 0; s + 1 < packing.q.size(); ++s) {
    const Alone alone(packing, s);
    const Tokens<double> part = alone.of(x);
    const Mask part_mask = mask.size() == 0 ? mask : Mask(mask.segment(alone.k0, alone.n_k));
    const auto [part_y, part_g, part_report] =
        both_passes(attention, part, alone.queries(dy), {.key_mask = view(part_mask), .offset = offset});
    INFO("sequence " << s);
    CHECK(same_bits(alone.queries(y), part_y));
    CHECK(same_bits(alone.queries(g.queries), part_g.queries));
    CHECK(same_bits(alone.keys(g.keys), part_g.keys));
    CHECK(same_bits(alone.keys(g.values), part_g.values));
    bias += part_g.bias;
    size += part_g.bias.cwiseAbs();
    sum.empty_rows += part_report.empty_rows;
    sum.repaired_rows += part_report.repaired_rows;
    sum.indefinite_rows += part_report.indefinite_rows;
    if (sum.engine == Engine::automatic) sum.engine = part_report.engine;
  }
  CHECK(worst_ratio(g.bias, bias, epsilon<double> * static_cast<double>(packing.q.size()) * size) <= 1);
  CHECK(report.empty_rows == sum.empty_rows);
  CHECK(report.repaired_rows == sum.repaired_rows);
  CHECK(report.indefinite_rows == sum.indefinite_rows);
  CHECK(report.engine == sum.engine);
  CHECK(y.allFinite());
}

}  // namespace

TEST_CASE("packed sequences equal separate calls", "[attention]") {
  for_each_packing([](const Packing& packing, Index offset, const AttentionOptions& options) {
    check_alike(make(options, 12), packing, offset, {});
  });
}

TEST_CASE("packed sequences with padding equal separate calls", "[attention]") {
  for_each_packing([](const Packing& packing, Index offset, const AttentionOptions& options) {
    const Vector<double> coin = normal_vector<double>(packing.keys().back(), 90);
    check_alike(make(options, 12), packing, offset, (coin.array() > -0.3).eval());
  });
}

TEST_CASE("packed sequences do not attend to each other", "[attention]") {
  const Lengths lengths{0, 10, 40, 75};
  const Tokens<double> x = random_tokens<double>(75, 75, d, 2);
  Tokens<double> changed = x;
  changed.q.middleRows(10, 30).setConstant(NAN);
  changed.k.middleRows(10, 30).setConstant(NAN);
  changed.v.middleRows(10, 30).setConstant(NAN);
  for (const Engine engine : engines()) {
    const Packed attention = make({.engine = engine}, 80);
    const auto run = [&](const Tokens<double>& t) { return attention(t.q, t.k, t.v, {.cumulative_lengths = lengths}); };
    const Matrix<double> y = run(changed), expected = run(x);
    CHECK(same_bits<double>(y.topRows(10), expected.topRows(10)));
    CHECK(same_bits<double>(y.bottomRows(35), expected.bottomRows(35)));
    CHECK(y.middleRows(10, 30).array().isNaN().all());
  }
}

TEST_CASE("no tokens, without or with empty packed sequences", "[attention]") {
  const Packed attention = make({}, 4);
  const Matrix<double> none(0, d), values(0, 2);
  for (const Lengths& lengths : {Lengths{0}, Lengths{0, 0}, Lengths{0, 0, 0}}) {
    const auto [y, g, report] = both_passes(attention, {none, none, values}, values, {.cumulative_lengths = lengths});
    CHECK(y.rows() == 0);
    INFO(lengths.size() - 1 << " sequences");
    CHECK((g.queries.rows() == 0 && g.keys.rows() == 0 && g.values.rows() == 0));
    CHECK((g.bias.rows() == 9 && g.bias.cols() == 1 && all_zero(g.bias)));
  }
}

namespace {

// a table that counts the calls of its gradient()
struct Counted {
  using Scalar = double;
  const LagBias<double>& bias() const { return table.bias(); }
  void gradient(Index first, std::span<const double> db, Matrix<double>& dx) const {
    ++*calls;
    table.gradient(first, db, dx);
  }
  Relative table;
  int* calls;
};

}  // namespace

TEST_CASE("gradient() of a position is called as often for a thousand sequences as for two", "[attention]") {
  const Index n = 1000;
  int calls = 0;
  const Attention attention(orf<double>(d, m, 7), Counted{Relative(random_table<double>(5, 40)), &calls});
  const Tokens<double> x = random_tokens<double>(n, n, d, 2);
  const auto calls_for = [&](const Lengths& packed) {
    Saved<double> saved;
    attention.forward(x.q, x.k, x.v, saved, {.cumulative_lengths = packed});
    calls = 0;
    attention.backward(saved, x.v);
    return calls;
  };
  Lengths ones(n + 1);
  for (Index s = 0; s <= n; ++s) ones[static_cast<std::size_t>(s)] = s;
  CHECK(calls_for(ones) == calls_for({0, 400, n}));
}

}  // namespace nprf::test::attention_packed
