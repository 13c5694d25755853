// SPDX-License-Identifier: MIT
#include "nprf/cuda/error_bound/fft_row_bound.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/toeplitz/fft/shared_memory_fft.cuh"
#include "nprf/cuda/toeplitz/fft/two_pass_fft.cuh"
#include "nprf/toeplitz/fft/convolution_error.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

/// The errors of sums by a GPU's FFTs, and the predicted share of failing rows.
namespace nprf::test::cuda_error_bound_fft_row_bound {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

// Y = T(c) (b o U) for one feature b (n) and values U (n,p), and for ones in the last column
struct Case {
  std::string name;
  Vector<float> c, b;  // of the lags -(n - 1) .. n - 1, of the keys
  Matrix<float> U;
};

// weights and values that make images of a convolution large: a sharp peak, and values of one frequency
std::vector<Case> cases(Index n) {
  std::vector<Case> all;
  for (const double height : {10.0, 25.0})
    for (const Index at : {-150, 120})
      for (const double frequency : {0.0, 0.3, 0.785398163397448})
        for (const bool causal : {false, true}) {
          Case x{"e^" + std::to_string(height) + " at " + std::to_string(at) + ", frequency " +
                     std::to_string(frequency) + (causal ? ", causal" : ""),
                 Vector<float>::Constant(2 * n - 1, static_cast<float>(std::exp(-height))),
                 (4 * normal_vector<double>(n, static_cast<std::uint64_t>(all.size()))).array().exp().cast<float>(),
                 normal<float>(n, 3, 5)};
          x.c[n - 1 + at] = 1;
          if (causal) x.c.tail(n - 1).setZero();
          for (Index j = 0; j < n && frequency > 0; ++j)
            x.U.row(j).setConstant(static_cast<float>(std::cos(frequency * static_cast<double>(j))));
          all.push_back(x);
        }
  return all;
}

// Y and the row sums (n, p + 1), and how large errors of a sum's own terms are
struct Exact {
  Matrix<double> sums, own_errors;
};

Exact exact(const Case& x) {
  const Index n = x.b.size(), p = x.U.cols();
  const double growth = eps * std::sqrt(17.0 + static_cast<double>(n));
  Matrix<double> U(n, p + 1);
  U << x.U.cast<double>(), Vector<double>::Ones(n);
  const Matrix<double> sizes = growth * U.cwiseAbs();
  Exact y{Matrix<double>(n, p + 1), Matrix<double>(n, p + 1)};
  for (Index i = 0; i < n; ++i) {
    const Vector<double> w = x.c.segment(n - 1 - i, n).cast<double>().cwiseProduct(x.b.cast<double>());
    y.sums.row(i).noalias() = w.transpose() * U;
    y.own_errors.row(i).noalias() = w.transpose() * sizes;
  }
  return y;
}

// the largest error of an entry beyond that of its own sum, over the estimated error of the convolution
template <class Fft>
double error(const Case& x, const Exact& expected, const Fft& fft) {
  const int n = static_cast<int>(x.b.size()), p = static_cast<int>(x.U.cols()), length = fft.length();
  std::vector<float> ones(static_cast<std::size_t>(length), 0.0f), features = ones;
  std::fill_n(ones.begin(), n, 1.0f);
  std::copy_n(x.b.data(), n, features.begin());
  const DeviceArray<float> A(ones), B(features), V(stored<float>(x.U)),
      c(std::vector<float>(x.c.data(), x.c.data() + x.c.size())), N(static_cast<std::size_t>(n * p)),
      D(static_cast<std::size_t>(n));
  const DeviceArray<float2> spectrum(2 * static_cast<std::size_t>(length));
  const int lags = 2 * n - 1;
  const cuda::TileTask<float> task{cuda::Operand<float>::by_channel(A.data(), 1, n, 1, length),
                                   cuda::Operand<float>::by_channel(B.data(), 1, n, 1, length),
                                   {cuda::Operand<float>(cuda::DeviceMatrixView<const float>(V.data(), n, p)), nullptr},
                                   {c.data(), lags, lags, 1 - n, 1, 1 - n, n - 1}};
  fft.queue_spectrum(task.c, 1, spectrum.data(), nullptr);
  cuda::Scratch count;
  fft.take(count);
  const DeviceArray<unsigned char> memory(count.bytes());
  cuda::Scratch scratch(memory.data());
  fft.queue(task, {spectrum.data(), 0}, N.data(), D.data(), fft.take(scratch), nullptr);
  Matrix<double> got(n, p + 1);
  got << as_floats(N.fetch(), n, p).cast<double>(), as_floats(D.fetch(), n, 1).cast<double>();
  CHECK(got.allFinite());

  toeplitz::NormSums of_c, with_values, with_ones;
  for (const float w : x.c) of_c.add(static_cast<double>(w));
  for (Index j = 0; j < n; ++j) {
    const double b = static_cast<double>(x.b[j]);
    with_ones.add(b);
    with_values.add(b * static_cast<double>(x.U.row(j).cwiseAbs().maxCoeff()));
  }
  const double per_value = toeplitz::fft_error_per_value(2 * length);
  const double of_ones = toeplitz::convolution_error(of_c.norms(), with_ones.norms(), per_value),
               of_values = toeplitz::convolution_error(of_c.norms(), with_values.norms(), per_value);
  const double bound = toeplitz::shared_transform_error(of_values, of_ones);  // p is odd
  const double worst = ((got - expected.sums).cwiseAbs() - expected.own_errors).maxCoeff();
  return std::max(worst, 0.0) / (eps * bound);
}

}  // namespace

TEST_CASE("errors of FFTs are within the estimated error and its margin", "[cuda]") {
  const cuda::Device device = cuda::Device::current();
  const auto variant = cuda::TwoPassVariant::of<cuda::fft::ColumnShape<2, 16>, cuda::Points512, 3>();
  const cuda::TwoPassFft in_two_passes(variant, device, 1, 3, 1, 0);
  double worst = 0;
  for (const int n : {1024, 3000})
    for (const Case& x : cases(n)) {
      INFO(n << " tokens, " << x.name);
      const Exact expected = exact(x);
      const double shared = error(x, expected, cuda::SharedMemoryFft(device, n, n, 1, 3, 1)),
                   two_pass = error(x, expected, in_two_passes);
      CHECK(shared <= error_margin);
      CHECK(two_pass <= error_margin);
      worst = std::max({worst, shared, two_pass});
    }
  CHECK(worst > error_margin / 4);
}

TEST_CASE("a row without keys does not count as failing, and one whose sum is lost beside larger ones does", "[cuda]") {
  const int n = 100;
  std::vector<double> c(2 * n - 1, 1.0);
  CHECK(cuda::failing_share(c, n, n, 256, 1e-4) == 0);
  for (int lag = 1; lag < n; ++lag) c[static_cast<std::size_t>(n - 1 + lag)] = 0;  // causal: row 0 has one key of n
  CHECK(cuda::failing_share(c, n, n, 256, 1e-4) > 0);
  CHECK(cuda::failing_share(c, n, n, 256, 1e-4) < 0.2);
  // a weight for queries from 50 on only, and 1e-30 for the others
  std::vector<double> steep(2 * n - 1, 0.0);
  std::fill_n(steep.begin(), 50, 1.0);
  CHECK(cuda::failing_share(steep, n, n, 256, 1e-4) < 0.1);
  std::fill_n(steep.begin() + 50, n, 1e-30);
  CHECK(std::abs(cuda::failing_share(steep, n, n, 256, 1e-4) - 0.5) <= 0.03);
}

}  // namespace nprf::test::cuda_error_bound_fft_row_bound
