// SPDX-License-Identifier: MIT

#include <array>
#include <vector>

#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// Arrays of other strides than [batch, heads, tokens, channels], and heads of queries that share keys and values.
namespace nprf::test::attention_multi_head_attention_layout {

namespace {

constexpr Index batch = 2, heads = 6, n_q = 9, n_k = 7, d = 4, d_v = 3;

std::vector<double> random(Index size, std::uint64_t seed) {
  const Vector<double> x = normal_vector<double>(size, seed);
  return {x.begin(), x.end()};
}

auto make_attention(const AttentionOptions& options = {}) {
  std::vector<RelativePosition<double>> positions;
  for (Index h = 0; h < heads; ++h) positions.emplace_back(random_table<double>(4, 40 + static_cast<std::uint64_t>(h)));
  return MultiHeadAttention(orf<double>(d, 6, 7), positions, options);
}

// q, k, v, dy and all results of a call, in arrays of some layout
struct Call {
  using View = HeadsView<double>;
  using Layout = View (*)(std::vector<double>&, Index tokens, Index of_heads, Index channels);

  Call(Layout layout, Index kv_heads) {
    const auto view = [&](std::vector<double>& in, Index tokens, Index of_heads, Index channels) {
      in.assign(static_cast<std::size_t>(2 * batch * tokens * of_heads * channels), 17);
      return layout(in, tokens, of_heads, channels);
    };
    q = view(memory[0], n_q, heads, d), k = view(memory[1], n_k, kv_heads, d), v = view(memory[2], n_k, kv_heads, d_v);
    y = view(memory[3], n_q, heads, d_v), dy = view(memory[4], n_q, heads, d_v);
    dq = view(memory[5], n_q, heads, d), dk = view(memory[6], n_k, kv_heads, d),
    dv = view(memory[7], n_k, kv_heads, d_v);
    std::uint64_t seed = 1;
    for (const View& x : {q, k, v, dy}) {
      const Matrix<double> values = normal<double>(x.batch * x.heads * x.tokens, x.channels, seed++);
      for (Index b = 0; b < x.batch; ++b)
        for (Index h = 0; h < x.heads; ++h) x(b, h) = values.middleRows((b * x.heads + h) * x.tokens, x.tokens);
    }
  }
  template <class A>
  void run(const A& attention) {
    Saved<double> saved;
    attention.forward(q, k, v, y, saved);
    attention.backward(saved, dy, dq, dk, dv, dbias);
  }

  std::vector<double> memory[8];
  View q, k, v, y, dy, dq, dk, dv;
  std::vector<Matrix<double>> dbias;
};

HeadsView<double> contiguous(std::vector<double>& in, Index tokens, Index of_heads, Index channels) {
  return {in.data(), batch, of_heads, tokens, channels};
}
HeadsView<double> by_tokens(std::vector<double>& in, Index tokens, Index of_heads, Index channels) {
  return tokens_first(in.data(), batch, tokens, of_heads, channels);
}
// two channels of padding after each token, three tokens after each head
HeadsView<double> padded(std::vector<double>& in, Index tokens, Index of_heads, Index channels) {
  const Index row = channels + 2, head = (tokens + 3) * row;
  in.assign(static_cast<std::size_t>(batch * of_heads * head), 17);
  return {in.data(), batch, of_heads, tokens, channels, {row, head, of_heads * head}};
}

}  // namespace

TEST_CASE("multi-head: results have the same bits in arrays of any strides", "[multi_head]") {
  const auto attention = make_attention();
  Call expected(contiguous, heads);
  expected.run(attention);
  for (const Call::Layout layout : {by_tokens, padded}) {
    Call got(layout, heads);
    got.run(attention);
    for (const auto member : {&Call::y, &Call::dq, &Call::dk, &Call::dv})
      for (Index b = 0; b < batch; ++b)
        for (Index h = 0; h < heads; ++h) CHECK(same_bits<double>((got.*member)(b, h), (expected.*member)(b, h)));
    for (std::size_t h = 0; h < heads; ++h) CHECK(same_bits(got.dbias[h], expected.dbias[h]));
  }
  Call in_padding(padded, heads);
  in_padding.run(attention);
  // nothing is written beside the rows: of y, two scalars a token and three tokens a head are padding
  Index untouched = 0;
  for (const double x : in_padding.memory[3]) untouched += x == 17;
  CHECK(untouched == batch * heads * ((n_q + 3) * (d_v + 2) - n_q * d_v));
}

TEST_CASE("multi-head: heads of queries that share keys and values equal heads with copies of them", "[multi_head]") {
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.direction = Direction::causal, .engine = Engine::lanes}})
    for (const Index kv_heads : {1, 2, 3}) {
      const Index group = heads / kv_heads;
      const auto attention = make_attention(options);
      for (const Call::Layout layout : {contiguous, by_tokens}) {
        Call shared(layout, kv_heads), copied(contiguous, heads);
        for (Index b = 0; b < batch; ++b)
          for (Index h = 0; h < heads; ++h) {
            copied.q(b, h) = shared.q(b, h), copied.dy(b, h) = shared.dy(b, h);
            copied.k(b, h) = shared.k(b, h / group), copied.v(b, h) = shared.v(b, h / group);
          }
        shared.run(attention);
        copied.run(attention);
        INFO(kv_heads << " heads of keys");
        for (Index b = 0; b < batch; ++b)
          for (Index h = 0; h < heads; ++h) {
            CHECK(same_bits<double>(shared.y(b, h), copied.y(b, h)));
            CHECK(same_bits<double>(shared.dq(b, h), copied.dq(b, h)));
          }
        for (std::size_t h = 0; h < heads; ++h) CHECK(same_bits(shared.dbias[h], copied.dbias[h]));
        for (Index b = 0; b < batch; ++b)
          for (Index h = 0; h < kv_heads; ++h) {
            Matrix<double> dk = copied.dk(b, h * group), dv = copied.dv(b, h * group);
            for (Index g = 1; g < group; ++g) dk += copied.dk(b, h * group + g), dv += copied.dv(b, h * group + g);
            CHECK(same_bits<double>(shared.dk(b, h), dk));
            CHECK(same_bits<double>(shared.dv(b, h), dv));
          }
      }
    }
}

TEST_CASE("multi-head: keys whose heads do not divide those of queries are rejected", "[multi_head]") {
  const auto attention = make_attention();
  Call x(contiguous, heads);
  std::vector<double> k = random(batch * 4 * n_k * d, 1), v = random(batch * 4 * n_k * d_v, 2);
  check_invalid(
      [&] {
        attention(x.q, HeadsView<double>{k.data(), batch, 4, n_k, d}, HeadsView<double>{v.data(), batch, 4, n_k, d_v},
                  x.y);
      },
      {"keys: expected a number of heads that 6 (of queries) is a multiple of", "got 4"});
}

TEST_CASE("multi-head: y in the memory of an input is rejected, but not beside it in one array", "[multi_head]") {
  const auto attention = make_attention();
  Call x(contiguous, heads);
  // queries, keys, values and y in one array, all with d channels
  struct Parts {
    Index step;
    HeadStrides strides;
  };
  constexpr Index of_head = n_q * d, of_sequence = heads * of_head, whole = batch * of_sequence;
  for (const auto& [step, strides] : {
           Parts{heads * d, {4 * heads * d, d, 4 * of_sequence}},  // [batch, tokens, 4, heads, channels]
           Parts{of_sequence, {d, of_head, 4 * of_sequence}},      // [batch, 4, heads, tokens, channels]
           Parts{of_head, {d, 4 * of_head, 4 * of_sequence}},      // [batch, heads, 4, tokens, channels]
       }) {
    std::vector<double> all = random(4 * whole, 3), y(whole);
    const auto part = [&, by = strides, from = step](Index at) {
      return HeadsView<double>{all.data() + at * from, batch, heads, n_q, d, by};
    };
    const HeadsView<double> apart{y.data(), batch, heads, n_q, d};
    attention(part(0), part(1), part(2), apart);
    const Matrix<double> before = part(2)(1, 5);
    CHECK_NOTHROW(attention(part(0), part(1), part(2), part(3)));
    CHECK(before == part(2)(1, 5));
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h) CHECK(same_bits<double>(part(3)(b, h), apart(b, h)));
    for (const Index at : {0, 1, 2})
      check_invalid([&] { attention(part(0), part(1), part(2), part(at)); },
                    {"y: expected an array that shares no memory with queries, keys and values"});

    // dq, dk, dv and dy in one array, too
    Saved<double> saved;
    attention.forward(part(0), part(1), part(2), apart, saved);
    std::vector<double> gradients = random(4 * whole, 4);
    const auto gradient = [&, by = strides, from = step](Index at) {
      return HeadsView<double>{gradients.data() + at * from, batch, heads, n_q, d, by};
    };
    std::vector<Matrix<double>> dbias;
    CHECK_NOTHROW(attention.backward(saved, gradient(3), gradient(0), gradient(1), gradient(2), dbias));
    for (const auto& [dq, dk, dv] :
         {std::array<Index, 3>{0, 0, 2}, {0, 1, 0}, {0, 1, 1}, {3, 1, 2}, {0, 3, 2}, {0, 1, 3}})
      check_invalid([&] { attention.backward(saved, gradient(3), gradient(dq), gradient(dk), gradient(dv), dbias); },
                    {"dq, dk, dv: expected arrays that share no memory with each other and with dy"});
  }
  check_invalid(
      [&] {
        attention(x.q, x.k, x.v, HeadsView<double>{x.v.data, batch, heads, n_q, d_v});
      },
      {"y: expected an array that shares no memory"});
}

}  // namespace nprf::test::attention_multi_head_attention_layout
