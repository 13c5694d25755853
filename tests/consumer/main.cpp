// SPDX-License-Identifier: MIT
#include <iostream>
#include <nprf/nprf.hpp>

nprf::Matrix<float> second(const nprf::Matrix<float>& x);

int main() {
  const nprf::Matrix<float> x = nprf::Matrix<float>::Random(40, 8);
  const auto features = nprf::orf<float>(8, 16);
  const float difference = (features.queries(x) - second(x)).norm();
  // alike weights and queries: every row is the mean of the values
  const nprf::Attention attention(features, nprf::NoPosition<float>());
  const nprf::Matrix<float> ones = nprf::Matrix<float>::Ones(40, 8), y = attention(ones, ones, x);
  const float off = (y.rowwise() - x.colwise().mean()).norm();
  std::cout << "difference " << difference << ", off " << off << '\n';
  return difference == 0 && off < 1e-4f ? 0 : 1;
}
