// SPDX-License-Identifier: MIT
#include "nprf/decoder/sink_tokens.hpp"

#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_sink_tokens {

namespace {

constexpr Index d = 3, d_v = 5, n = 9;

struct Tokens {
  Matrix<float> k = normal<float>(n, d, 1), v = normal<float>(n, d_v, 2);

  StateToken<float> token(Index j) const {
    return {nullptr, 0, v.row(j).data(), 0, 0, static_cast<float>(j), true, j % 2 == 0};
  }
};

void check(const SinkTokens<float>& sinks, const Tokens& x, Index count) {
  for (Index j = 0; j < count; ++j) {
    const ExactToken<float> token = sinks(j);
    CHECK(token.position == j);
    for (Index l = 0; l < d; ++l) CHECK(token.key[l] == x.k(j, l));
    for (Index p = 0; p < padded_to_lanes(d_v); ++p) CHECK(token.value[p] == (p < d_v ? x.v(j, p) : 0));
    CHECK(token.largest_value == static_cast<float>(j));
    CHECK(token.has_finite_value == (j % 2 == 0));
  }
}

}  // namespace

TEST_CASE("sinks: tokens stay as memory grows, and can be replaced", "[decoder]") {
  const Tokens x;
  SinkTokens<float> sinks(7, d, d_v);
  CHECK(sinks.bytes() == 0);
  for (Index j = 0; j < 7; ++j) {
    sinks.reserve(j + 1);
    sinks.put(j, x.token(j), x.k.row(j).data());
    check(sinks, x, j + 1);
  }
  const std::size_t bytes = sinks.bytes();
  sinks.reserve(1000);
  CHECK(sinks.bytes() == bytes);
  sinks.put(2, x.token(8), x.k.row(8).data());
  CHECK(sinks(2).key[1] == x.k(8, 1));
  sinks.put(2, x.token(2), x.k.row(2).data());
  check(sinks, x, 7);
  SinkTokens<float> none(0, d, d_v);
  none.reserve(50);
  CHECK(none.bytes() == 0);
}

TEST_CASE("sinks: what is written can be read", "[decoder]") {
  const Tokens x;
  SinkTokens<float> sinks(7, d, d_v), read(7, d, d_v);
  sinks.reserve(4), read.reserve(4);
  for (Index j = 0; j < 4; ++j) sinks.put(j, x.token(j), x.k.row(j).data());
  std::vector<double> file;
  sinks.transfer(4, [&](auto number) { file.push_back(static_cast<double>(number)); });
  CHECK(file.size() == 4 * (d + d_v + 2));
  std::size_t at = 0;
  read.transfer(4, [&](auto& number) { number = static_cast<std::remove_reference_t<decltype(number)>>(file[at++]); });
  check(read, x, 4);
}

}  // namespace nprf::test::decoder_sink_tokens
