// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/core/types.hpp"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"

namespace nprf::test {

/// The storage type of values, the type of features that tiles read, and the instruction that multiplies.
template <class S_, class Feature_, cuda::MmaShape shape_ = cuda::MmaShape::native>
struct TileTypes {
  using S = S_;
  using Feature = Feature_;
  static constexpr cuda::MmaShape shape = shape_;
};

/// Y = ((A B^T) o C) [V 1] of small integers and of weights that are powers of two. Half, bfloat16 and float represent
/// all operands and sums exactly, so that tiles must be exact.
template <cuda::Storage S, class Feature, cuda::MmaShape shape = cuda::MmaShape::native>
struct TileCase {
  int batch = 1, heads = 1, n_q = 1, n_k = 1, r = 16, p = 64;
  double density = 0.5;                   // probability that an entry of B is 1
  int v_offset = 0, v_stride = p;         // offset and row stride of the stored values
  std::vector<float> weights = {1};       // the weights in the band, chosen at random
  cuda::Band band = {-n_q + 1, n_k - 1};  // lags outside have the constant weights `before` and `after`
  float before = 1, after = 1;
  int last_attended = n_k - 1;  // lags beyond have weight 0
  bool masked = false;
  bool streams = false;  // whether a kernel with asynchronous copies may be used
  // if not empty, one for each head: all weights are exp(slope |lag - origin|), but for those beyond last_attended, and
  // relative to the largest
  std::vector<float> slopes = {};
  int origin = 0;

  int z() const { return batch * heads; }
  int lags() const { return n_q + n_k - 1; }

  struct Data {
    Matrix<float> A, B, V, c;  // (z n_q,r) (z n_k,r) (z n_k,p) (heads,lags)
    std::vector<unsigned char> mask;
  };

  Data data() const {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> number(-8, 8);
    std::bernoulli_distribution entry(density), half(0.5);
    Data x{Matrix<float>(z() * n_q, r), Matrix<float>(z() * n_k, r), Matrix<float>(z() * n_k, p),
           Matrix<float>(heads, lags()), std::vector<unsigned char>(static_cast<std::size_t>(batch * n_k), 1)};
    for (float& a : x.A.reshaped()) a = half(random);
    for (float& b : x.B.reshaped()) b = entry(random);
    for (float& v : x.V.reshaped()) v = static_cast<float>(density < 0.5 ? number(random) / 8 : number(random));
    for (int h = 0; h < heads; ++h)
      for (int e = 0; e < lags(); ++e) {
        const int lag = e - (n_q - 1);
        x.c(h, e) = lag > last_attended ? 0
                    : lag < band.first  ? before
                    : lag > band.last   ? after
                                        : weights[random() % weights.size()];
      }
    for (int h = 0; h < heads && !slopes.empty(); ++h) {
      const double slope = static_cast<double>(slopes[static_cast<std::size_t>(h)]);
      const auto exponent = [&](int lag) { return slope * std::abs(lag - origin); };
      double largest = -std::numeric_limits<double>::infinity();
      for (int lag = 1 - n_q; lag <= std::min(n_k - 1, last_attended); ++lag)
        largest = std::max(largest, exponent(lag));
      for (int lag = 1 - n_q; lag < n_k; ++lag)
        x.c(h, lag + n_q - 1) = lag > last_attended ? 0.0f : static_cast<float>(std::exp(exponent(lag) - largest));
    }
    if (masked)
      for (int k = 0; k < batch * n_k; ++k)
        if (random() % 3 == 0) {
          x.mask[static_cast<std::size_t>(k)] = 0;
          for (int h = 0; h < heads; ++h) x.B.row((k / n_k * heads + h) * n_k + k % n_k).setZero();
        }
    return x;
  }

  /// The result by the formula, (z n_q,p + 1).
  Matrix<double> expected(const Data& x) const {
    Matrix<double> Y = Matrix<double>::Zero(z() * n_q, p + 1);
    for (int s = 0; s < z(); ++s) {
      Matrix<double> scores = x.A.middleRows(s * n_q, n_q).template cast<double>() *
                              x.B.middleRows(s * n_k, n_k).template cast<double>().transpose();
      for (int i = 0; i < n_q; ++i)
        for (int j = 0; j < n_k; ++j) scores(i, j) *= static_cast<double>(x.c(s % heads, j - i + n_q - 1));
      Y.block(s * n_q, 0, n_q, p) = scores * x.V.middleRows(s * n_k, n_k).template cast<double>();
      Y.block(s * n_q, p, n_q, 1) = scores.rowwise().sum();
    }
    return Y;
  }

  // features in the layout of tiles: by channel, or by token with rows padded to a multiple of 16, with their scale
  int stored_features() const { return std::is_same_v<Feature, float> ? r : (r + 15) / 16 * 16; }
  std::vector<Feature> features(const Matrix<float>& x, int n) const {
    std::vector<Feature> values(static_cast<std::size_t>(z() * n * stored_features()));
    for (int s = 0; s < z(); ++s)
      for (int t = 0; t < n; ++t)
        for (int f = 0; f < stored_features(); ++f) {
          const int at = std::is_same_v<Feature, float> ? (s * r + f) * n + t : (s * n + t) * stored_features() + f;
          assign(values[static_cast<std::size_t>(at)], f < r ? cuda::feature_scale<Feature> * x(s * n + t, f) : 0.0f);
        }
    return values;
  }
  cuda::Operand<Feature> operand(const Feature* features, int n) const {
    if constexpr (std::is_same_v<Feature, float>)
      return cuda::Operand<float>::by_channel(features, heads, n, r, n);
    else
      return cuda::DeviceMatrixView<const Feature>(features, batch, heads, n, stored_features());
  }

  /// The result by direct or by banded kernels, as the sum over `parts` parts.
  Matrix<double> result(const Data& x, int parts, bool banded = false) const {
    const bool has_part_of_tail = banded && !slopes.empty() && last_attended == n_k - 1;
    return result_of(x, parts + has_part_of_tail, [&](const cuda::TileTask<S, Feature>& task, float* N, float* D) {
      if (!banded) return cuda::queue_direct<S, Feature, shape>({task, parts, N, D}, z(), nullptr, streams);
      const std::size_t sums =
          static_cast<std::size_t>(z() * (cuda::ChunkTask<S>::chunks_of(n_k) + 1) * stored_features() * (p + 1));
      const DeviceArray<float> left(sums), right(sums), parameters(fallen());
      const cuda::TailSlope slope{slopes.empty() ? nullptr : parameters.data(), 1};
      cuda::queue_banded<S, Feature, shape>({{task, left.data(), right.data(), slope}, band, parts, N, D}, z(),
                                            nullptr);
    });
  }
  // how much b falls with each lag, as a position's parameter
  std::vector<float> fallen() const {
    std::vector<float> parameters = slopes;
    for (float& x : parameters) x = -x;
    return parameters;
  }
  /// The result of kernels that queue(task, N, D) queues.
  template <class Queue>
  Matrix<double> result_of(const Data& x, int parts, Queue&& queue) const {
    std::vector<S> v(static_cast<std::size_t>(v_offset + z() * n_k * v_stride));
    for (S& entry : v) assign(entry, std::numeric_limits<float>::quiet_NaN());
    for (int k = 0; k < z() * n_k; ++k)
      for (int e = 0; e < p; ++e) assign(v[static_cast<std::size_t>(v_offset + k * v_stride + e)], x.V(k, e));
    const DeviceArray<Feature> dA(features(x.A, n_q)), dB(features(x.B, n_k));
    const DeviceArray<S> dv(v);
    const DeviceArray<float> dc(stored<float>(x.c));
    const DeviceArray<unsigned char> mask(x.mask);
    const std::size_t rows = static_cast<std::size_t>(parts * z() * n_q);
    const DeviceArray<float> N(rows * static_cast<std::size_t>(p)), D(rows);
    cuda::DeviceMatrixView<const S> V(dv.data() + v_offset, batch, heads, n_k, p);
    V.token_stride = v_stride;
    V.head_stride = n_k * v_stride;
    V.batch_stride = heads * V.head_stride;
    const cuda::TileTask<S, Feature> task{
        operand(dA.data(), n_q), operand(dB.data(), n_k),
        cuda::Columns<S>{V, masked ? reinterpret_cast<const bool*>(mask.data()) : nullptr},
        cuda::DeviceWeights{dc.data(), lags(), lags(), -n_q + 1, 1, -n_q + 1, last_attended}};
    queue(task, N.data(), D.data());
    const Matrix<double> n = as_floats(N.fetch(), parts * z() * n_q, p).template cast<double>(),
                         d = as_floats(D.fetch(), parts * z() * n_q, 1).template cast<double>();
    Matrix<double> Y = Matrix<double>::Zero(z() * n_q, p + 1);
    for (int part = 0; part < parts; ++part) {
      Y.leftCols(p) += n.middleRows(part * z() * n_q, z() * n_q);
      Y.col(p) += d.middleRows(part * z() * n_q, z() * n_q);
    }
    return Y;
  }
};

/// That of TileTypes.
template <class Types>
using TileCaseOf = TileCase<typename Types::S, typename Types::Feature, Types::shape>;

}  // namespace nprf::test
