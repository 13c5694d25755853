// SPDX-License-Identifier: MIT

// What nprf's headers link: threads and, where it is used, FFTW in both scalars. It compiles in a sixth of main.cpp's
// time.

#include <complex>
#include <iostream>
#include <nprf/core/team.hpp>
#include <nprf/feature_map/paper_names.hpp>
#include <nprf/fft/fftw.hpp>
#include <vector>

nprf::Matrix<float> second(const nprf::Matrix<float>& x);

template <class T>
bool transforms() {
#if NPRF_USE_FFTW
  nprf::Buffer<T> x(8);
  nprf::Buffer<std::complex<T>> y(5);
  std::fill_n(x.data(), 8, T(1));
  nprf::fft::RealPlan<T>(8).forward(x.data(), y.data());
  return y.data()[0] == std::complex<T>(8);
#else
  return true;
#endif
}

int main() {
  const nprf::Matrix<float> x = nprf::Matrix<float>::Random(40, 8);
  const float difference = (nprf::orf<float>(8, 16).queries(x) - second(x)).norm();
  std::vector<nprf::Workspace> workspaces(2);
  std::vector<int> calls(100);
  nprf::Team(workspaces).run(100, [&](nprf::Index task, nprf::Workspace&) { ++calls[static_cast<std::size_t>(task)]; });
  std::cout << "difference " << difference << '\n';
  return difference == 0 && calls == std::vector<int>(100, 1) && transforms<float>() && transforms<double>() ? 0 : 1;
}
