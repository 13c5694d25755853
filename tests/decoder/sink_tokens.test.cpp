// SPDX-License-Identifier: MIT
#include "nprf/decoder/sink_tokens.hpp"

#include <limits>
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
  const Matrix<float> axes = Matrix<float>::Identity(d, d);
  for (Index j = 0; j < count; ++j) {
    for (Index l = 0; l < d; ++l) CHECK(sinks.score(axes.row(l).data(), j) == x.k(j, l));
    Vector<float> N = Vector<float>::Zero(padded_to_lanes(d_v)), weights = Vector<float>::Zero(j + 1);
    weights[j] = 2;
    sinks.add_values(weights.data(), j + 1, N.data());
    for (Index p = 0; p < d_v; ++p) CHECK(N[p] == 2 * x.v(j, p));
    CHECK(sinks.largest_value(j) == static_cast<float>(j));
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
  const Vector<float> axis = Vector<float>::Unit(d, 1);
  CHECK(sinks.score(axis.data(), 2) == x.k(8, 1));
  sinks.put(2, x.token(2), x.k.row(2).data());
  check(sinks, x, 7);
  SinkTokens<float> none(0, d, d_v);
  none.reserve(50);
  CHECK(none.bytes() == 0);
}

TEST_CASE("sinks: only the finite entries of a value are added", "[decoder]") {
  Tokens x;
  x.v(1, 3) = std::numeric_limits<float>::quiet_NaN();
  SinkTokens<float> sinks(2, d, d_v);
  sinks.reserve(2);
  sinks.put(1, x.token(1), x.k.row(1).data());
  Vector<float> N = Vector<float>::Ones(padded_to_lanes(d_v));
  const float weights[] = {0, 1};
  sinks.add_values(weights, 2, N.data());
  for (Index p = 0; p < d_v; ++p) CHECK(N[p] == (p == 3 ? 1 : 1 + x.v(1, p)));
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
