// SPDX-License-Identifier: MIT

// A feature map of your own: any type that models nprf::FeatureMap works wherever the library's maps do. This one is
// the Taylor series of exp(q.k) up to the second power, 1 + q.k + (q.k)^2 / 2, which needs no random numbers.

#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

/// phi(x) = [1, x, x (x) x / sqrt(2)], 1 + d + d^2 features. nprf::TaylorFeatures has each product of two channels
/// once.
struct SecondOrderFeatures {
  using Scalar = float;
  Index d;

  Index input_dim() const { return d; }
  Index output_dim() const { return 1 + d + d * d; }

  // (n,d) -> (n,r)
  Matrix<float> queries(const MatrixView<float>& x) const {
    Matrix<float> phi(x.rows(), output_dim());
    phi.col(0).setOnes();
    phi.middleCols(1, d) = x;
    for (Index i = 0; i < d; ++i)
      phi.middleCols(1 + d + i * d, d) = (x.array().colwise() * x.col(i).array()) / std::sqrt(2.0f);
    return phi;
  }
  Matrix<float> keys(const MatrixView<float>& x) const { return queries(x); }

  // with G the d x d features' gradient:  dx = g + (G + G^T) x / sqrt(2)
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&, const MatrixView<float>& dphi) const {
    Matrix<float> dx = dphi.middleCols(1, d);
    for (Index row = 0; row < x.rows(); ++row) {
      const Matrix<float> G = dphi.row(row).tail(d * d).reshaped<Eigen::RowMajor>(d, d);
      dx.row(row) += x.row(row) * (G + G.transpose()) / std::sqrt(2.0f);
    }
    return dx;
  }
};
static_assert(FeatureMap<SecondOrderFeatures>);

int main() {
  const Index n = 200, d = 16;
  const Matrix<float> q = Matrix<float>::Random(n, d), k = Matrix<float>::Random(n, d), v = Matrix<float>::Random(n, d);
  const AlibiPosition<float> position(0.1f);
  const Matrix<float> exact =
      reference::softmax_attention<float>(q, k, v, position, Direction::bidirectional, Normalization::unit(1));

  const auto error = [&](const auto& map) { return (Attention(map, position)(q, k, v) - exact).norm() / exact.norm(); };
  const float taylor = error(SecondOrderFeatures{d}), random = error(orf<float>(d, 1 + d + d * d));

  // the gradient of L = |y|^2 / 2 along a direction of the keys: by backward, and by a difference of two losses
  const Attention attention(SecondOrderFeatures{d}, position);
  Saved<float> saved;
  const Matrix<float> direction = Matrix<float>::Random(n, d), y = attention.forward(q, k, v, saved);
  const float slope = attention.backward(saved, y).keys.cwiseProduct(direction).sum(), h = 0.05f;
  const auto loss = [&](float step) { return attention(q, k + step * direction, v).squaredNorm() / 2; };
  const float difference = (loss(h) - loss(-h)) / (2 * h);

  std::printf("%d features, relative error: Taylor %.5f, random %.5f\n", static_cast<int>(1 + d + d * d), taylor,
              random);
  std::printf("the loss falls by %.4f along a direction of the keys, by its gradient by %.4f\n", -difference, -slope);
  return taylor < random && std::abs(difference - slope) < 0.01f * std::abs(slope) ? 0 : 1;
}
