// SPDX-License-Identifier: MIT
//
// A million steps do not drift.
#include <cmath>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_decoder_long {

// The tokens repeat with a period, so the weights of each residue add up to a number in closed form: the number of its
// tokens, or with ALiBi a geometric series.
TEST_CASE("a million steps", "[long]") {
  using T = float;
  constexpr Index d = 4, d_v = 4, period = 100, n = 1000000;
  const auto features = orf<T>(d, 8, 1);
  for (const double slope : {0.0, 1e-5, 0.01}) {
    const AlibiPosition<T> position(static_cast<T>(slope));
    const Attention one(features, position, {.direction = Direction::causal});
    TokenBatch<T> x(1, 1, 1, period, d, d_v);
    Decoder decoder(MultiHeadAttention(features, position, {.direction = Direction::causal}));
    for (Index i = 0; i < n; i += period) x.step(decoder, 0, period);
    CHECK(decoder.tokens(0) == n);

    const Matrix<double> A = one.query_features(Matrix<T>(x.q(0, 0))).cast<double>(),
                         B = one.key_features(Matrix<T>(x.k(0, 0))).cast<double>(), v = x.v(0, 0).cast<double>();
    const double s = static_cast<double>(static_cast<T>(slope)), repeats = n / period;
    for (Index i = 0; i < period; ++i) {
      const auto position_of_query = static_cast<double>(n - period + i);
      Vector<double> N = Vector<double>::Zero(d_v);
      double D = 0;
      for (Index j = 0; j < period; ++j) {
        const double count = j <= i ? repeats : repeats - 1,
                     youngest = static_cast<double>(i - (j <= i ? j : j - period)), ratio = std::exp(-s * period);
        const double series =
            s == 0 ? count : std::exp(-s * youngest) * std::expm1(count * std::log(ratio)) / (ratio - 1);
        CHECK(youngest + (count - 1) * period <= position_of_query);
        const double weight = A.row(i).dot(B.row(j)) * series;
        N += weight * v.row(j).transpose(), D += weight;
      }
      // as after a few steps: the features' errors, and sums over 8 features
      for (Index p = 0; p < d_v; ++p) CHECK(std::abs(x.y(0, 0)(i, p) - N[p] / D) < 2e-6 * v.cwiseAbs().maxCoeff());
    }
  }
}

}  // namespace nprf::test::decoder_decoder_long
