// SPDX-License-Identifier: MIT

// Attention whose weights fall with distance, in time n log n; and how far it is from exact softmax.

#include <iostream>
#include <nprf/nprf.hpp>

int main() {
  using namespace nprf;
  const Index n = 1000, d = 64;
  const Matrix<float> q = Matrix<float>::Random(n, d), k = Matrix<float>::Random(n, d), v = Matrix<float>::Random(n, d);
  const Attention attention(orf<float>(d, 128), AlibiPosition<float>(0.05f));  // 128 orthogonal random features
  const Matrix<float> y = attention(q, k, v);                                  // a row is a token
  const Matrix<float> exact = reference::softmax_attention<float>(q, k, v, attention.position(),
                                                                  Direction::bidirectional, Normalization::unit(1));
  const float error = (y - exact).norm() / exact.norm();
  std::cout << "relative error against exact softmax attention: " << error << '\n';
  return error < 0.2f ? 0 : 1;
}
