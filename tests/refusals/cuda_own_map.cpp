// SPDX-License-Identifier: MIT
// expected: nprf: on a GPU the feature map must be one of nprf's own
#include "nprf/cuda/plan/model_of.hpp"

using namespace nprf;

struct Squares {
  using Scalar = float;
  Index input_dim() const { return 4; }
  Index output_dim() const { return 4; }
  Matrix<float> queries(const MatrixView<float>& x) const { return x.array().square(); }
  Matrix<float> keys(const MatrixView<float>& x) const { return queries(x); }
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&, const MatrixView<float>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

const auto model = cuda::model_of(Attention(Squares{}, NoPosition<float>()));
