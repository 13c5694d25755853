// SPDX-License-Identifier: MIT

// Random features estimate exp(q.k). Which map, and how many random vectors m? The error against exact softmax falls
// like 1/sqrt(m); orthogonal vectors make it a little smaller. The trigonometric and the hyperbolic map compute two
// features from each vector. Trigonometric features have both signs, so that with few of them a denominator may be near
// zero.

#include <cstdint>
#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

int main() {
  constexpr Index n = 100, d = 16;
  const Matrix<float> q = Matrix<float>::Random(n, d), k = Matrix<float>::Random(n, d), v = Matrix<float>::Random(n, d);
  const Matrix<float> exact = reference::softmax_attention<float>(q, k, v, NoPosition<float>{},
                                                                  Direction::bidirectional, Normalization::unit(1));

  // make(m, seed) returns a feature map; its error is averaged over a few seeds
  const auto error = [&](auto make, Index m) {
    constexpr std::uint64_t seeds = 16;
    float sum = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const Attention attention(make(m, seed), NoPosition<float>{});
      sum += (attention(q, k, v) - exact).norm() / exact.norm();
    }
    return sum / seeds;
  };

  const auto gaussian = [](Index m, std::uint64_t seed) { return prf<float>(d, m, seed); };
  const auto orthogonal = [](Index m, std::uint64_t seed) { return orf<float>(d, m, seed); };
  const auto trigonometric = [](Index m, std::uint64_t seed) { return trf<float>(d, m, seed); };
  const auto hyperbolic = [](Index m, std::uint64_t seed) {
    return HyperbolicFeatures<float>(FeatureOptions{.input_dim = d, .num_features = m, .seed = seed});
  };

  std::printf("   m     prf     orf     trf  hyperbolic\n");
  for (const Index m : {4, 16, 64, 256})
    std::printf("%4d %7.3f %7.3f %7.3f %11.3f\n", static_cast<int>(m), error(gaussian, m), error(orthogonal, m),
                error(trigonometric, m), error(hyperbolic, m));

  const bool more_is_better = error(gaussian, 256) < error(gaussian, 4) / 3;
  const bool two_features_are_better = error(hyperbolic, 64) < error(gaussian, 64);
  return more_is_better && two_features_are_better ? 0 : 1;
}
