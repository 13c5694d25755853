// SPDX-License-Identifier: MIT
#include <iostream>
#include <nprf/nprf.hpp>

nprf::Matrix<float> second(const nprf::Matrix<float>& x);

int main() {
  const nprf::Matrix<float> x = nprf::Matrix<float>::Random(40, 8);
  nprf::Attention attention(nprf::orf<float>(8, 16), nprf::RelativePosition<float>(nprf::Vector<float>::Zero(9)));
  const float difference = (attention(x, x, x) - second(x)).norm();
  std::cout << "difference " << difference << '\n';
  return difference < 1e-4f ? 0 : 1;
}
