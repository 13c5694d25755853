// SPDX-License-Identifier: MIT

// Attention with a position bias, without an n x n matrix, and its error against exact softmax.

#include <iostream>
#include <nprf/nprf.hpp>

int main() {
  using namespace nprf;
  const Index n = 1000, d = 64;
  // tokens of four topics; a row is a token
  const Matrix<float> topics = Matrix<float>::Random(4, d), v = Matrix<float>::Random(n, d);
  Matrix<float> q = Matrix<float>::Random(n, d) / 2, k = Matrix<float>::Random(n, d) / 2;
  for (Index i = 0; i < n; ++i) q.row(i) += topics.row(i / 7 % 4), k.row(i) += topics.row(i % 4);

  // ALiBi's bias of slope 0.05; d + 1 features for these queries and keys; exact weights less than 32 tokens away
  const AlibiPosition<float> position(0.05f);
  const Calibration<float> calibration = calibrate<float>(q, k, v, position, {.num_features = d + 1, .near = 32});
  const Attention attention(calibration.features, position, {.near = 32});
  const Matrix<float> y = attention(q, k, v);

  const auto softmax = [&](const Matrix<float>& queries) {
    return reference::softmax_attention<float>(queries, k, v, position, Direction::bidirectional,
                                               Normalization::unit(1));
  };
  const Matrix<float> exact = softmax(q), by_distance_alone = softmax(0 * q);
  const auto error = [&](const Matrix<float>& x) { return (x - exact).norm() / exact.norm(); };
  std::cout << "error against exact softmax: " << error(y)
            << "; of the bias alone, without q.k: " << error(by_distance_alone) << '\n';
  return error(y) < 0.03f && error(by_distance_alone) > 0.3f ? 0 : 1;
}
