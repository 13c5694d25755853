// SPDX-License-Identifier: MIT
#include "nprf/cuda/fft/block.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/toeplitz/fft/two_pass_fft.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_fft_block {

namespace {

using Complex = std::complex<double>;

// forward, then inverse FFT; the spectrum is stored at index<3>
template <class Shape>
__global__ void transform_kernel(const float2* x, float2* spectrum, float2* back) {
  cuda::start_kernel();
  const cuda::fft::BlockTransform<Shape> transform(cuda::shared_memory<float2>());
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  float2 v[Shape::P];
  for (int i = 0; i < Shape::P; ++i) v[i] = x[Shape::template index<1>(thread, i)];
  transform.forward(v);
  for (int i = 0; i < Shape::P; ++i) spectrum[Shape::template index<3>(thread, i)] = v[i];
  transform.inverse(v);
  for (int i = 0; i < Shape::P; ++i) back[Shape::template index<1>(thread, i)] = v[i];
}

template <class Shape>
int frequency_at(int place) {
  const int k1 = place / Shape::L2, k2 = place % Shape::L2 / Shape::R3, k3 = place % Shape::R3;
  return k1 + Shape::R1 * (k2 + Shape::R2 * k3);
}

template <class Shape, int pass>
void check_pass() {
  const std::array offsets = []<int... v>(std::integer_sequence<int, v...>) {
    return std::array{Shape::template offset<pass, v>...};
  }(std::make_integer_sequence<int, Shape::P>());
  std::vector<int> indices;
  for (int v = 0; v < Shape::P; ++v) {
    const auto place = [v](int thread) { return Shape::place(Shape::template index<pass>(thread, v)); };
    for (int thread = 0; thread < Shape::threads; ++thread) {
      REQUIRE(place(thread) == Shape::template thread_place<pass>(thread) + offsets[static_cast<std::size_t>(v)]);
      indices.push_back(Shape::template index<pass>(thread, v));
    }
    // half a warp moves 16 values of 8 bytes at a time, each through two of 32 banks
    for (int first = 0; first < Shape::threads; first += 16) {
      std::array<int, 16> banks{};
      for (int thread = first; thread < first + 16; ++thread) ++banks[static_cast<std::size_t>(place(thread) % 16)];
      REQUIRE(*std::max_element(banks.begin(), banks.end()) == 1);
    }
  }
  std::sort(indices.begin(), indices.end());
  for (int index = 0; index < Shape::L; ++index) REQUIRE(indices[static_cast<std::size_t>(index)] == index);
}

}  // namespace

TEMPLATE_TEST_CASE("a block computes the forward and the inverse FFT", "[cuda]", cuda::Points512, cuda::Points1024,
                   cuda::Points2048, cuda::Points4096, cuda::Points8192) {
  using Shape = TestType;
  constexpr int L = Shape::L;
  const Vector<float> random = normal_vector<float>(2 * L, 1);
  std::vector<float2> x(L);
  for (int j = 0; j < L; ++j) x[static_cast<std::size_t>(j)] = {random[2 * j], random[2 * j + 1]};
  const DeviceArray<float2> dx(x), dspectrum(x.size()), dback(x.size());
  const std::size_t shared = sizeof(float2) * cuda::fft::BlockTransform<Shape>::shared;
  cuda::launch("test", transform_kernel<Shape>, dim3{1, 1, 1}, dim3{Shape::threads, 1, 1}, shared, nullptr, dx.data(),
               dspectrum.data(), dback.data());
  const std::vector<float2> spectrum = dspectrum.fetch(), back = dback.fetch();

  // the rounding errors of log2 L passes are relative to the root mean square of the input
  const double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  for (int place = 0; place < L; place += 37) {
    const int k = frequency_at<Shape>(place);
    Complex expected = 0;
    for (int j = 0; j < L; ++j) {
      const double angle = -2 * std::numbers::pi * (static_cast<long long>(j) * k % L) / L;
      expected += Complex(x[static_cast<std::size_t>(j)].x, x[static_cast<std::size_t>(j)].y) * std::polar(1.0, angle);
    }
    const float2 got = spectrum[static_cast<std::size_t>(place)];
    REQUIRE(std::abs(Complex(got.x, got.y) - expected) <= 8 * eps * std::sqrt(2.0 * L));
  }
  for (std::size_t j = 0; j < x.size(); ++j) {
    REQUIRE(std::abs(back[j].x / L - x[j].x) <= 20 * eps);
    REQUIRE(std::abs(back[j].y / L - x[j].y) <= 20 * eps);
  }
}

TEMPLATE_TEST_CASE("block FFT addresses are thread_place + offset, are distinct, and have no bank conflicts", "[cuda]",
                   cuda::Points512, cuda::Points1024, cuda::Points2048, cuda::Points4096, cuda::Points8192) {
  using Shape = TestType;
  check_pass<Shape, 1>();
  check_pass<Shape, 2>();
  check_pass<Shape, 3>();
}

}  // namespace nprf::test::cuda_fft_block
