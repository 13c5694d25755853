// SPDX-License-Identifier: MIT
#include "nprf/decoder/exact_keys.hpp"

#include <cmath>
#include <limits>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_exact_keys {

TEST_CASE("exact keys: sums with the weights of softmax, of sinks and of any part of a ring", "[decoder]") {
  using T = float;
  constexpr Index d = 5, d_v = 3, r = 2, n = 90;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Matrix<T> q = normal<T>(1, d, 1), k = normal<T>(n, d, 2), phi = Matrix<T>::Zero(n, r);
  Matrix<T> v = normal<T>(n, d_v, 3);
  v(70, 1) = std::numeric_limits<T>::infinity();
  Vector<T> table = random_table<T>(40, 4);
  table[40 - 3] = -std::numeric_limits<T>::infinity();  // of age 3
  StepBias<T> bias(RelativePosition<T>(table).bias().view(), 0, 8, true);
  bias.reserve(n);
  TokenRing<T> ring({r, d_v, d}, 40);  // 48 slots
  ring.reserve(n);
  SinkTokens<T> sinks(2, d, d_v);
  sinks.reserve(n);
  Workspace scratch;
  for (Index tokens = 1; tokens <= n; ++tokens) {
    const Index j = tokens - 1;
    const StateToken<T> token{phi.row(j).data(), 1, v.row(j).data(), 0, 0, static_cast<T>(j * 37 % 90), true, j != 70};
    ring.put(j, token, k.row(j).data());
    if (j < 2) sinks.put(j, token, k.row(j).data());
    for (const Index most : {Index{1}, Index{2}, Index{17}, Index{40}}) {
      const Workspace::Scope scope(scratch);
      const Index first = std::max<Index>(tokens - most, 0);
      const Index far_sinks = std::min<Index>(most % 3, first);  // 1 or 2, or fewer that the range has not
      ExactKeys<T> keys(bias, ring, sinks, tokens, most, 2, scratch);
      const double largest = keys.set_exponents(q.data(), far_sinks, first, 0.5), reference = largest + 0.25;
      Vector<double> N = Vector<double>::Zero(d_v);
      double D = 0, expected_largest = -infinity, largest_value = 0;
      for (Index i = far_sinks > 0 ? 0 : first; i < tokens; i = i + 1 == far_sinks ? first : i + 1) {
        const double exponent = q.row(0).dot(k.row(i)) + bias(tokens - 1 - i) - bias.largest(tokens) - 0.5,
                     w = std::exp(exponent - reference);
        expected_largest = std::max(expected_largest, exponent);
        D += w;
        if (static_cast<T>(w) > 0) largest_value = std::max(largest_value, static_cast<double>(i * 37 % 90));
        for (Index p = 0; p < d_v; ++p)
          if (std::isfinite(v(i, p))) N[p] += w * static_cast<double>(v(i, p));
      }
      CHECK(largest == Approx(expected_largest).margin(1e-5));
      Vector<T> sums = Vector<T>::Zero(padded_to_lanes(d_v));
      const auto got = keys.add(reference, tokens <= 70, sums.data());
      // rounding errors of scores up to 20, and of 40 terms
      CHECK(std::abs(static_cast<double>(got.weights) - D) <= 1e-5 * D);
      CHECK(worst_ratio(Vector<T>(sums.head(d_v)), N, 4e-5 * D) <= 1);
      CHECK(static_cast<double>(got.largest_value) == largest_value);
    }
  }
  // a key without a weight
  ExactKeys<T> none(bias, ring, sinks, n, 0, 0, scratch);
  CHECK(none.set_exponents(q.data(), 0, n, 0) == -infinity);
  Vector<T> sums = Vector<T>::Zero(padded_to_lanes(d_v));
  CHECK(none.add(-infinity, true, sums.data()).weights == 0);
}

}  // namespace nprf::test::decoder_exact_keys
