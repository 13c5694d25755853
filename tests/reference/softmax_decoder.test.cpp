// SPDX-License-Identifier: MIT
#include "nprf/reference/softmax_decoder.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::reference_softmax_decoder {

namespace {

using reference::softmax_attention;
using reference::SoftmaxDecoder;

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

template <Real T>
std::vector<HeldPosition<T>> positions() {
  Vector<T> window = random_table<T>(6, 25);  // the query's own position is masked, and all lags below -4
  window[0] = window[1] = window[6] = static_cast<T>(minus_infinity);
  return {{NoPosition<T>().bias()},
          {RelativePosition<T>(random_table<T>(100, 22)).bias()},
          {t5_position<T>(normal_vector<T>(8, 23), Direction::causal, 20).bias()},
          {AlibiPosition<T>(T(0.0625)).bias()},
          {RelativePosition<T>(window).bias()}};
}

}  // namespace

TEMPLATE_TEST_CASE("a cache of keys and values has the rows of softmax attention", "[reference]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 70, d = 5, d_v = 3;
  for (const auto& position : positions<T>())
    for (const auto& normalization : {Normalization::unit(2), Normalization::none()})
      for (const Index prompt : {0, 1, 33}) {
        const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
        const Matrix<T> expected = softmax_attention<T>(x.q, x.k, x.v, position, Direction::causal, normalization);
        SoftmaxDecoder<T> cache(position, normalization, d, d_v);
        cache.append(x.k.topRows(prompt), x.v.topRows(prompt));
        Matrix<T> y = expected;
        for (Index t = prompt, tokens = 1; t < n; t += tokens, tokens = std::min(tokens % 3 + 1, n - t))
          cache.step(x.q.middleRows(t, tokens), x.k.middleRows(t, tokens), x.v.middleRows(t, tokens),
                     y.middleRows(t, tokens));
        INFO("prompt " << prompt);
        CHECK(cache.tokens() == n);
        CHECK(cache.bytes() == static_cast<std::size_t>(n * (d + d_v)) * sizeof(T));
        // both round logits of size |q.k| + |b| < 16, so that weights have errors of 16 eps, and sum up to n of them
        CHECK(worst_ratio(y, expected, (2 * 16 + n) * epsilon<T> * x.v.cwiseAbs().maxCoeff()) <= 1);
      }
}

TEST_CASE("a cache of keys and values rejects other shapes and loses nothing", "[reference]") {
  SoftmaxDecoder<float> cache(NoPosition<float>(), Normalization::unit(1), 4, 3);
  const Matrix<float> k = normal<float>(2, 4, 1), v = normal<float>(2, 3, 2);
  Matrix<float> y(2, 3);
  cache.append(k, v);
  check_invalid([&] { cache.append(v, v); }, {"keys: expected 4 columns", "got 3"});
  check_invalid([&] { cache.append(k, k); }, {"values: expected 3 columns", "got 4"});
  check_invalid([&] { cache.append(k, v.topRows(1)); }, {"values: expected 2 rows", "got 1"});
  check_invalid([&] { cache.step(k.topRows(1), k, v, y); }, {"queries: expected 2 x 4", "got 1 x 4"});
  check_invalid([&] { cache.step(k, k, v, y.topRows(1)); }, {"y: expected 2 x 3", "got 1 x 3"});
  CHECK(cache.tokens() == 2);
  check_invalid(
      [] {
        SoftmaxDecoder<float>(t5_position<float>(Vector<float>::Zero(8), Direction::bidirectional),
                              Normalization::unit(1), 4, 3);
      },
      {"position: expected one for causal attention"});
}

}  // namespace nprf::test::reference_softmax_decoder
