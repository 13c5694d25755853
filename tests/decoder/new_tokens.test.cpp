// SPDX-License-Identifier: MIT
//
// What a decoder refuses is in decoder.arguments.test.cpp.
#include "nprf/decoder/new_tokens.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_new_tokens {

TEST_CASE("new tokens: rows of heads, and how many tokens a sequence gets", "[decoder]") {
  constexpr Index batch = 2, heads = 6, kv_heads = 3, n = 5, d = 4, d_v = 2;
  const Matrix<float> q = normal<float>(batch * n * heads, d, 1), k = normal<float>(batch * kv_heads * n, d, 2),
                      v = normal<float>(batch * kv_heads * n, d_v, 3);
  Matrix<float> y(batch * heads * n, d_v);
  const NewTokens<float> tokens{tokens_first(q.data(), batch, n, heads, d),
                                {k.data(), batch, kv_heads, n, d},
                                {v.data(), batch, kv_heads, n, d_v},
                                {y.data(), batch, heads, n, d_v}};
  CHECK(tokens.shape() == DecoderShape{heads, kv_heads, d_v});
  CHECK(tokens.count({}, 1) == n);
  const std::vector<Index> lengths{5, 3};
  CHECK(tokens.count({.lengths = lengths}, 1) == 3);
  // tokens 3 and 4 of the heads 2, 3 and 4 of sequence 1
  const TokenRows<float> rows = rows_of_tokens(tokens.q, 1, 2, 3, 3, 2);
  CHECK(rows.count() == 6);
  for (Index t = 0; t < 2; ++t)
    for (Index h = 0; h < 3; ++h) {
      const float* expected = q.row((1 * n + 3 + t) * heads + 2 + h).data();
      CHECK(rows(3 * t + h) == expected);
      CHECK(token_of(tokens.q, 1, 2 + h, 3 + t) == expected);
    }
}

TEST_CASE("new tokens: the same layout", "[decoder]") {
  float x = 0, y = 0;
  const NewTokens<float> one{{&x, 1, 2, 3, 4}, {&x, 1, 2, 3, 4}, {&x, 1, 2, 3, 4}, {&y, 1, 2, 3, 4}};
  NewTokens<float> other{{&y, 1, 2, 3, 4}, {&y, 1, 2, 3, 4}, {&y, 1, 2, 3, 4}, {&x, 1, 2, 3, 4}};
  CHECK(one.has_layout_of(other));
  CHECK_FALSE(one.has_layout_of({}));
  const auto differs_by = [&](auto&& change) {
    NewTokens<float> changed = other;
    change(changed);
    return !one.has_layout_of(changed);
  };
  CHECK(differs_by([](auto& t) { t.q.batch = 2; }));
  CHECK(differs_by([](auto& t) { t.k.heads = 1; }));
  CHECK(differs_by([](auto& t) { t.v.tokens = 2; }));
  CHECK(differs_by([](auto& t) { t.y.channels = 3; }));
  CHECK(differs_by([](auto& t) { t.y.strides.token = 4; }));
  CHECK(differs_by([](auto& t) { t.q.strides.head = 4; }));
  CHECK(differs_by([](auto& t) { t.v.strides.batch = 4; }));
  CHECK(differs_by([](auto& t) { t.k.data = nullptr; }));
}

}  // namespace nprf::test::decoder_new_tokens
