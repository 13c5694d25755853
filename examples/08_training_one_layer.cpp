// SPDX-License-Identifier: MIT

// Trains one attention layer to output the token of five steps before. The right key cannot be found by its content,
// but by a bias for each lag, which is learned together with the projections of queries, keys and values.

#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>
#include <random>

using namespace nprf;

/// A matrix that is trained by Adam (Kingma and Ba 2015).
struct Parameter {
  Matrix<float> value;
  Matrix<float> mean = 0 * value, square = 0 * value;  // of the gradients so far
  int steps = 0;

  void learn(const Matrix<float>& gradient) {
    ++steps;
    mean += 0.1f * (gradient - mean);
    square += 0.01f * (gradient.cwiseAbs2() - square);
    const float of_mean = 1 - std::pow(0.9f, static_cast<float>(steps));
    const float of_square = 1 - std::pow(0.99f, static_cast<float>(steps));
    value.array() -= 0.03f * (mean.array() / of_mean) / ((square.array() / of_square).sqrt() + 1e-8f);
  }
};

int main() {
  constexpr Index n = 128, vocabulary = 8, d = 8, m = 16, reach = 16, back = 5;
  std::mt19937 random(1);
  const auto features = orf<float>(d, m);
  Parameter b{Matrix<float>::Zero(2 * reach + 1, 1)};
  Parameter W_q{Matrix<float>::Random(vocabulary, d)}, W_k{Matrix<float>::Random(vocabulary, d)};
  Parameter W_v{Matrix<float>::Random(vocabulary, vocabulary)};

  float first = 0, loss = 0;
  for (int step = 0; step <= 400; ++step) {
    Matrix<float> x = Matrix<float>::Zero(n, vocabulary);  // random tokens, one-hot
    for (Index i = 0; i < n; ++i) x(i, random() % vocabulary) = 1;

    const Attention attention(features, RelativePosition<float>(b.value.col(0)), {.direction = Direction::causal});
    Saved<float> saved;
    const Matrix<float> y = attention.forward(x * W_q.value, x * W_k.value, x * W_v.value, saved);

    // loss = sum_i |y_i - x_{i-5}|^2 / (n - 5)
    Matrix<float> dy = Matrix<float>::Zero(n, vocabulary);
    dy.bottomRows(n - back) = y.bottomRows(n - back) - x.topRows(n - back);
    loss = dy.squaredNorm() / (n - back);
    if (step == 0) first = loss;
    if (step % 50 == 0) std::printf("step %3d: loss %.5f\n", step, loss);

    // q = x W_q, so dW_q = x^T dq
    const Gradients<float> g = attention.backward(saved, dy * (2.0f / (n - back)));
    b.learn(g.bias);
    W_q.learn(x.transpose() * g.queries);
    W_k.learn(x.transpose() * g.keys);
    W_v.learn(x.transpose() * g.values);
  }

  Index peak = 0;
  b.value.col(0).maxCoeff(&peak);
  std::printf("the learned bias peaks at lag %d\n", static_cast<int>(peak - reach));
  return loss < first / 100 && peak - reach == -back ? 0 : 1;
}
