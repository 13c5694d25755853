// SPDX-License-Identifier: MIT
//
// What a decoder refuses is in decoder.arguments.test.cpp.
#include "nprf/decoder/new_tokens.hpp"

#include "support/catch.hpp"

namespace nprf::test::decoder_new_tokens {

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
