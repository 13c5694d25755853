// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/fft/two_pass_fft.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_toeplitz_fft_two_pass_fft {

namespace {

struct Sizes {
  int batch, heads, n_q, n_k, r, p;
};

// Y = ((A B^T) o C) [V 1] of random A, B, V and C, by FFTs and by the double sum over queries and keys
class Case {
 public:
  explicit Case(const Sizes& sizes) : m_sizes(sizes) {
    const auto& [batch, heads, n_q, n_k, r, p] = m_sizes;
    m_A = normal<float>(z() * r, n_q, 1);
    m_B = normal<float>(z() * r, n_k, 2);
    m_V = normal<float>(z() * n_k, p, 3);
    m_c = normal<float>(heads, n_q + n_k - 1, 4);
    for (int j = 0; j < batch * n_k; ++j) m_mask.push_back(j % 7 != 3);
  }

  struct Result {
    std::vector<float> N, D;  // [z, n_q, p] [z, n_q]
  };
  double error(const cuda::TwoPassVariant& variant, std::size_t slab_bytes) const {
    return error(run(variant, slab_bytes), variant);
  }
  Result run(const cuda::TwoPassVariant& variant, std::size_t slab_bytes) const {
    const auto& [batch, heads, n_q, n_k, r, p] = m_sizes;
    const cuda::TwoPassFft fft(variant, cuda::Device::current(), r, p, z(), slab_bytes);
    const int length = fft.length();
    REQUIRE(length == variant.N());
    const DeviceArray<float> A(stored<float>(padded(m_A, length))), B(stored<float>(padded(m_B, length))),
        V(stored<float>(m_V)), c(stored<float>(m_c));
    const DeviceArray<unsigned char> mask(m_mask);
    const cuda::DeviceWeights weights{c.data(), m_c.cols(), static_cast<int>(m_c.cols()), 1 - n_q, 1, 1 - n_q, n_k - 1};
    const DeviceArray<float2> spectrum(static_cast<std::size_t>(heads) * 2 * static_cast<std::size_t>(length));
    fft.queue_spectrum(weights, heads, spectrum.data(), nullptr);
    cuda::Scratch count;
    fft.take(count);
    const DeviceArray<unsigned char> memory(count.bytes());
    cuda::Scratch scratch(memory.data());
    const DeviceArray<float> N(std::vector<float>(static_cast<std::size_t>(z() * n_q * p), nan)),
        D(std::vector<float>(static_cast<std::size_t>(z() * n_q), nan));
    const cuda::TileTask<float> task{cuda::Operand<float>::by_channel(A.data(), heads, n_q, r, length),
                                     cuda::Operand<float>::by_channel(B.data(), heads, n_k, r, length),
                                     {cuda::DeviceMatrixView<const float>(V.data(), batch, heads, n_k, p),
                                      reinterpret_cast<const bool*>(mask.data())},
                                     weights};
    fft.queue(task, {spectrum.data(), 2 * length}, N.data(), D.data(), fft.take(scratch), nullptr);
    return {N.fetch(), D.fetch()};
  }

  // the largest error of some rows, in eps times the root mean square of the inverse FFTs, |c| |B_f u| / sqrt(2 N) per
  // feature, times A_f
  double error(const Result& result, const cuda::TwoPassVariant& variant) const {
    const auto& [batch, heads, n_q, n_k, r, p] = m_sizes;
    double worst = 0;
    for (int y = 0; y < z(); ++y)
      for (int column = 0; column <= p; ++column) {
        const int other = column % 2 == 1 ? column - 1 : std::min(column + 1, p);
        const auto c = m_c.row(y % heads).cast<double>();
        std::vector<double> rms_of_feature;
        for (int f = 0; f < r; ++f) {
          double square = 0;
          for (int j = 0; j < n_k; ++j)
            square += std::pow(B(y, f, j), 2) * (std::pow(u(y, j, column), 2) + std::pow(u(y, j, other), 2));
          rms_of_feature.push_back(c.norm() * std::sqrt(square / (2 * variant.N())));
        }
        for (int i = y % 5; i < n_q; i += n_q / 16 + 1) {
          double expected = 0, square_sum = 0;
          for (int f = 0; f < r; ++f) {
            const double a = static_cast<double>(m_A(y * r + f, i));
            double sum = 0;
            for (int j = 0; j < n_k; ++j) sum += c[j - i + n_q - 1] * B(y, f, j) * u(y, j, column);
            expected += a * sum;
            square_sum += std::pow(a * rms_of_feature[static_cast<std::size_t>(f)], 2);
          }
          const std::size_t row = static_cast<std::size_t>(y * n_q + i);
          const float got = column < p ? result.N[row * static_cast<std::size_t>(p) + static_cast<std::size_t>(column)]
                                       : result.D[row];
          const double error_of_row = std::abs(static_cast<double>(got) - expected) / std::sqrt(square_sum);
          worst = std::isnan(error_of_row) ? std::numeric_limits<double>::infinity() : std::max(worst, error_of_row);
        }
      }
    return worst / static_cast<double>(std::numeric_limits<float>::epsilon());
  }

 private:
  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();

  int z() const { return m_sizes.batch * m_sizes.heads; }
  double B(int y, int f, int j) const { return static_cast<double>(m_B(y * m_sizes.r + f, j)); }
  double u(int y, int j, int column) const {
    if (m_mask[static_cast<std::size_t>(y / m_sizes.heads * m_sizes.n_k + j)] == 0) return 0;
    return column == m_sizes.p ? 1 : static_cast<double>(m_V(y * m_sizes.n_k + j, column));
  }
  static Matrix<float> padded(const Matrix<float>& x, int length) {
    Matrix<float> longer = Matrix<float>::Zero(x.rows() + 1, length);  // one row more, so that the array is not empty
    longer.topLeftCorner(x.rows(), x.cols()) = x;
    return longer;
  }

  Sizes m_sizes;
  Matrix<float> m_A, m_B, m_V, m_c;  // [z r, n_q] [z r, n_k] [z n_k, p] [head, lags]
  std::vector<unsigned char> m_mask;
};

// 8 for one FFT, as in the tests of fft/, times 2 for forward and inverse
constexpr double tolerance = 16;

template <int folds>
cuda::TwoPassVariant tiny() {
  return cuda::TwoPassVariant::of<cuda::fft::ColumnShape<2, 16>, cuda::Points512, folds>();
}

}  // namespace

TEST_CASE("FFTs in two passes compute the product, in slabs of any size", "[cuda]") {
  const Case whole({.batch = 2, .heads = 2, .n_q = 2048, .n_k = 2048, .r = 5, .p = 3}),
      part({.batch = 2, .heads = 2, .n_q = 1500, .n_k = 900, .r = 5, .p = 4}),
      thrice({.batch = 1, .heads = 2, .n_q = 6144, .n_k = 5000, .r = 3, .p = 2});
  for (const unsigned slots : {0u, 3u, 16u, 1000u}) {
    INFO(slots << " slots of a slab");
    CHECK(whole.error(tiny<1>(), slots * 2 * 2048 * sizeof(float2)) <= tolerance);
    CHECK(part.error(tiny<1>(), slots * 2 * 2048 * sizeof(float2)) <= tolerance);
    CHECK(thrice.error(tiny<3>(), slots * 2 * 6144 * sizeof(float2)) <= tolerance);
  }
}

TEST_CASE("FFTs in two passes are bitwise reproducible", "[cuda]") {
  const Case x({.batch = 1, .heads = 1, .n_q = 2000, .n_k = 2000, .r = 4, .p = 3});
  const auto first = x.run(tiny<1>(), 1 << 20), second = x.run(tiny<1>(), 1 << 20);
  CHECK(first.N == second.N);
  CHECK(first.D == second.D);
}

TEST_CASE("FFTs in two passes compute products of up to 196608 tokens", "[cuda]") {
  for (const cuda::TwoPassVariant& variant : cuda::two_pass_variants()) {
    const int n = variant.N();
    if (n > 200000) continue;
    const Case x({.batch = 1, .heads = 1, .n_q = n, .n_k = n - 1, .r = 1, .p = 1});
    INFO(n << " tokens");
    CHECK(x.error(variant, 0) <= tolerance);
  }
}

TEST_CASE("products without keys or without features are zero", "[cuda]") {
  for (const int n_k : {0, 100})
    for (const int r : {0, 2}) {
      if (n_k > 0 && r > 0) continue;
      const auto [N, D] = Case({.batch = 1, .heads = 1, .n_q = 2048, .n_k = n_k, .r = r, .p = 2}).run(tiny<1>(), 0);
      INFO(n_k << " keys, " << r << " features");
      CHECK(N == std::vector<float>(4096, 0.0f));
      CHECK(D == std::vector<float>(2048, 0.0f));
    }
}

TEST_CASE("variants are sorted by length, up to 2^20 tokens", "[cuda]") {
  int before = 12288;  // the longest FFT in shared memory on older devices
  for (const cuda::TwoPassVariant& variant : cuda::two_pass_variants()) {
    CHECK(variant.N() > before);
    CHECK(2 * variant.N() <= 3 * before);
    CHECK(cuda::TwoPassFft::variant_for(before + 1) == &variant);
    before = variant.N();
  }
  CHECK(before == 1 << 20);
  CHECK(cuda::TwoPassFft::variant_for(before + 1) == nullptr);
}

}  // namespace nprf::test::cuda_toeplitz_fft_two_pass_fft
