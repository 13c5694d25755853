// SPDX-License-Identifier: MIT
#include "nprf/cuda/error_bound/signal_norms.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_error_bound_signal_norms {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

struct Measured {
  Measured(const Matrix<float>& B, const Matrix<float>& V, const bool* mask) : m_B(stored<float>(B.transpose())) {
    const int n = static_cast<int>(B.rows()), r = static_cast<int>(B.cols());
    const DeviceArray<float> values(stored<float>(V));
    const cuda::DeviceMatrixView<const float> view(values.data(), V.rows(), V.cols());
    cuda::Scratch count;
    cuda::SignalNorms::take(count, 1, n, r, nullptr);
    memory = std::make_unique<DeviceArray<unsigned char>>(count.bytes());
    cuda::Scratch scratch(memory->data());
    norms = cuda::SignalNorms::take(scratch, 1, n, r, largest.data());
    cuda::check(cudaMemsetAsync(largest.data(), 0, sizeof(int), nullptr), "clearing");
    cuda::queue_signal_norms(
        cuda::SignalTask<float>{
            cuda::Operand<float>::by_channel(m_B.data(), 1, n, r, n), {cuda::Operand<float>(view), mask}, norms},
        1, nullptr);
  }

  std::unique_ptr<DeviceArray<unsigned char>> memory;
  DeviceArray<int> largest{1};
  cuda::SignalNorms norms;

 private:
  DeviceArray<float> m_B;
};

void check(const toeplitz::NormSums& got, const Vector<double>& x) {
  const double tolerance = 8 * eps;
  CHECK(std::abs(got.one - x.sum()) <= tolerance * x.sum());
  CHECK(std::abs(got.square - x.squaredNorm()) <= tolerance * x.squaredNorm());
  CHECK(std::abs(got.max - x.maxCoeff()) <= tolerance * x.maxCoeff());
}

}  // namespace

TEST_CASE("norms of signals agree with their definition at any scale", "[cuda]") {
  for (const Index n : {1, 31, 256, 257, 1100})
    for (const Index p : {0, 1, 40})
      for (const double scale : {1e-25, 1.0, 1e25}) {
        const Matrix<float> B = static_cast<float>(1 / scale) * normal<float>(n, 11, 1),
                            V = static_cast<float>(scale) * normal<float>(n, p, 2);
        const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(n));
        for (Index j = 0; j < n; ++j) mask[static_cast<std::size_t>(j)] = j % 3 != 1;
        const Measured got(B, V, mask.get());
        Vector<double> key_max = Vector<double>::Zero(n);
        for (Index j = 0; j < n; ++j)
          if (p > 0 && mask[static_cast<std::size_t>(j)])
            key_max[j] = static_cast<double>(V.row(j).cwiseAbs().maxCoeff());
        INFO("n " << n << ", p " << p << ", scale " << scale);
        CHECK(*got.largest.data() == cuda::magnitude(static_cast<float>(key_max.maxCoeff())));
        const double value_scale = static_cast<double>(cuda::power_of_two_scale(*got.largest.data()).value);
        for (int f = 0; f < 11; ++f) {
          const Vector<double> b = B.col(f).cwiseAbs().cast<double>();
          check(got.norms.of(0, f, false, 1), b);
          check(got.norms.of(0, f, true, value_scale), b.cwiseProduct(key_max) / value_scale);
        }
        for (Index first = 0; first < n; first += 1 + n / 23)
          for (Index end = first; end <= n; end += 1 + n / 29) {
            const double expected = end > first ? key_max.segment(first, end - first).maxCoeff() : 0;
            CHECK(static_cast<double>(got.norms.largest_value(0, static_cast<int>(first), static_cast<int>(end))) ==
                  expected);
          }
      }
}

TEST_CASE("a non-finite key or value makes the largest magnitude infinite", "[cuda]") {
  for (const float nonfinite : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const bool in_keys : {true, false}) {
      Matrix<float> B = normal<float>(300, 5, 1), V = normal<float>(300, 3, 2);
      CHECK(*Measured(B, V, nullptr).largest.data() < cuda::infinite_magnitude);
      (in_keys ? B : V)(270, 2) = nonfinite;
      CHECK(*Measured(B, V, nullptr).largest.data() >= cuda::infinite_magnitude);
    }
}

}  // namespace nprf::test::cuda_error_bound_signal_norms
