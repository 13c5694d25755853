// SPDX-License-Identifier: MIT
#include "nprf/cuda/error_bound/signal_norms.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_error_bound_signal_norms {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

template <int>
__global__ void query_kernel(cuda::SignalNorms norms, double value_scale, toeplitz::NormSums* sums, const int* ranges,
                             int count, float* largest) {
  cuda::start_kernel();
  for (int f = 0; f < norms.r; ++f)
    for (const int with_values : {0, 1}) sums[2 * f + with_values] = norms.of(0, f, with_values, value_scale);
  for (int k = 0; k < count; ++k) largest[k] = norms.largest_value(0, ranges[2 * k], ranges[2 * k + 1]);
}

class Measured {
 public:
  Measured(const Matrix<float>& B, const Matrix<float>& V, const std::vector<unsigned char>& mask = {})
      : m_B(stored<float>(B.transpose())) {
    const int n = static_cast<int>(B.rows()), r = static_cast<int>(B.cols());
    const DeviceArray<float> values(stored<float>(V));
    const DeviceArray<unsigned char> on_device(mask);
    const auto* key_mask = mask.empty() ? nullptr : reinterpret_cast<const bool*>(on_device.data());
    const cuda::DeviceMatrixView<const float> view(values.data(), V.rows(), V.cols());
    cuda::Scratch count;
    cuda::SignalNorms::take(count, 1, n, r, nullptr);
    m_memory = std::make_unique<DeviceArray<unsigned char>>(count.bytes());
    cuda::Scratch scratch(m_memory->data());
    m_norms = cuda::SignalNorms::take(scratch, 1, n, r, m_largest.data());
    cuda::check(cudaMemsetAsync(m_largest.data(), 0, sizeof(int), nullptr), "clearing");
    cuda::queue_signal_norms(
        cuda::SignalTask<float>{
            cuda::Operand<float>::by_channel(m_B.data(), 1, n, r, n), {cuda::Operand<float>(view), key_mask}, m_norms},
        1, nullptr);
  }

  /// The magnitude of the largest |v|.
  int largest() const { return m_largest.fetch().front(); }

  struct Queried {
    std::vector<toeplitz::NormSums> sums;  // (r,2): without and with the values
    std::vector<float> largest;            // of each range of keys first, end
  };
  Queried query(double value_scale, const std::vector<int>& ranges) const {
    const std::size_t count = ranges.size() / 2;
    const DeviceArray<toeplitz::NormSums> sums(2 * static_cast<std::size_t>(m_norms.r));
    const DeviceArray<int> on_device(ranges);
    const DeviceArray<float> largest(count);
    cuda::launch("test", query_kernel<0>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr, m_norms, value_scale, sums.data(),
                 on_device.data(), static_cast<int>(count), largest.data());
    return {sums.fetch(), largest.fetch()};
  }

 private:
  std::unique_ptr<DeviceArray<unsigned char>> m_memory;
  DeviceArray<int> m_largest{1};
  cuda::SignalNorms m_norms;
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
        std::vector<unsigned char> mask(static_cast<std::size_t>(n));
        for (std::size_t j = 0; j < mask.size(); ++j) mask[j] = j % 3 != 1;
        const Measured measured(B, V, mask);
        Vector<double> key_max = Vector<double>::Zero(n);
        for (Index j = 0; j < n; ++j)
          if (p > 0 && mask[static_cast<std::size_t>(j)])
            key_max[j] = static_cast<double>(V.row(j).cwiseAbs().maxCoeff());
        std::vector<int> ranges;
        for (Index first = 0; first < n; first += 1 + n / 23)
          for (Index end = first; end <= n; end += 1 + n / 29)
            ranges.insert(ranges.end(), {static_cast<int>(first), static_cast<int>(end)});
        INFO("n " << n << ", p " << p << ", scale " << scale);
        CHECK(measured.largest() == cuda::magnitude(static_cast<float>(key_max.maxCoeff())));
        const double value_scale = static_cast<double>(cuda::power_of_two_scale(measured.largest()).value);
        const auto got = measured.query(value_scale, ranges);
        for (Index f = 0; f < 11; ++f) {
          const Vector<double> b = B.col(f).cwiseAbs().cast<double>();
          check(got.sums[static_cast<std::size_t>(2 * f)], b);
          check(got.sums[static_cast<std::size_t>(2 * f + 1)], b.cwiseProduct(key_max) / value_scale);
        }
        for (std::size_t k = 0; k < got.largest.size(); ++k) {
          const Index first = ranges[2 * k], end = ranges[2 * k + 1];
          const double expected = end > first ? key_max.segment(first, end - first).maxCoeff() : 0;
          CHECK(static_cast<double>(got.largest[k]) == expected);
        }
      }
}

TEST_CASE("a non-finite key or value makes the largest magnitude infinite", "[cuda]") {
  for (const float nonfinite : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const bool in_keys : {true, false}) {
      Matrix<float> B = normal<float>(300, 5, 1), V = normal<float>(300, 3, 2);
      CHECK(Measured(B, V).largest() < cuda::infinite_magnitude);
      (in_keys ? B : V)(270, 2) = nonfinite;
      CHECK(Measured(B, V).largest() >= cuda::infinite_magnitude);
    }
}

TEST_CASE("norms and longest nonzero run of weights agree with their definition", "[cuda]") {
  std::mt19937_64 draw(1);
  for (const int size : {0, 1, 2, 255, 256, 257, 1000, 3001})
    // a weight is zero with probability 1 / zeros; 0: never
    for (const unsigned zeros : {0u, 1u, 2u, 5u, 60u, 1000u}) {
      std::vector<float> c(static_cast<std::size_t>(size));
      for (float& x : c) x = zeros > 0 && draw() % zeros == 0 ? 0.0f : static_cast<float>(draw() % 1000 + 1) / 1000;
      const DeviceArray<float> weights(c);
      const DeviceArray<cuda::WeightNorms> out(1);
      cuda::queue_weight_norms({{weights.data(), 0, size, -7, 1, -7, size - 8}, out.data()}, 1, nullptr);
      const cuda::WeightNorms got = out.fetch()[0];
      double one = 0, square = 0, max = 0;
      int longest_run = 0, run = 0;
      for (const float x : c) {
        const double y = static_cast<double>(x);
        one += y, square += y * y, max = std::max(max, y);
        run = x == 0 ? 0 : run + 1;
        longest_run = std::max(longest_run, run);
      }
      INFO(size << " weights, zeros " << zeros);
      CHECK(std::abs(got.sums.one - one) <= 1e-12 * one);
      CHECK(std::abs(got.sums.square - square) <= 1e-12 * square);
      CHECK(got.sums.max == max);
      CHECK(got.size == size);
      CHECK(got.longest_run == longest_run);
      const auto first = c.begin() + got.longest_run_first;
      CHECK(std::count(first, first + got.longest_run, 0.0f) == 0);
    }
}

}  // namespace nprf::test::cuda_error_bound_signal_norms
