// SPDX-License-Identifier: MIT
// expected: nprf: the first argument of Attention must model nprf::FeatureMap
#include "nprf/attention/attention.hpp"

using nprf::Index, nprf::Matrix, nprf::MatrixView;

struct Integers {
  using Scalar = int;
  Index input_dim() const { return 4; }
  Index output_dim() const { return 4; }
  Matrix<int> queries(const MatrixView<int>& x) const { return x; }
  Matrix<int> keys(const MatrixView<int>& x) const { return x; }
  Matrix<int> backward(const MatrixView<int>&, const MatrixView<int>&, const MatrixView<int>& dphi) const {
    return dphi;
  }
};

const nprf::Attention attention(Integers{}, nprf::NoPosition<float>{});
