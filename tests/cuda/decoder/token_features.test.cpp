// SPDX-License-Identifier: MIT
#include "nprf/cuda/decoder/token_features.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

/// The features of a token are those that the kernel for tiles of tokens computes.
namespace nprf::test::cuda_decoder_token_features {

namespace {

using cuda::FeatureKind;
constexpr int d = 6, n = 3;
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

// stores phi [n, r] and the log-scales [n]
__global__ void kernel(cuda::FeatureTask<float> task, float* phi, float* log_scales) {
  cuda::start_kernel();
  float* x = cuda::shared_memory<float>();
  float *scratch = x + task.tiles() * task.d_padded, *own = scratch + cuda::OneTokenShape::warps;
  for (int t = 0; t < task.x.tokens; ++t) {
    __syncthreads();  // the token before has been read
    for (int k = static_cast<int>(threadIdx.x); k < task.d_padded; k += cuda::OneTokenShape::threads)
      x[k] = cuda::channel_of(task, 0, t, k);
    __syncthreads();
    const float log_scale = cuda::compute_token_features(task, 0, {x, scratch}, own);
    for (int k = static_cast<int>(threadIdx.x); k < task.r; k += cuda::OneTokenShape::threads)
      phi[t * task.r + k] = own[k];
    if (threadIdx.x == 0) log_scales[t] = log_scale;
  }
}

cuda::FeatureModel feature_model(FeatureKind kind, int m) {
  cuda::FeatureModel model{kind, d, 0, {}};
  if (kind == FeatureKind::quadratic) {
    model.first = 5, model.second = 3;
    model.mean_square = {0.5f, 0.25f, 0.125f};
    model.curvature = {0.1f, 0, 0.2f, 0, 0, 0.3f};
  } else if (kind != FeatureKind::elu) {
    model.m = m;
    model.projection = stored<float>(normal<float>(m, d, 2));
  }
  return model;
}

}  // namespace

TEST_CASE("features of one token", "[cuda]") {
  const Matrix<float> x = normal<float>(n, d, 1);
  const DeviceArray<float> on_device(stored<float>(x));
  for (const FeatureKind kind : {FeatureKind::positive, FeatureKind::hyperbolic, FeatureKind::trigonometric,
                                 FeatureKind::elu, FeatureKind::quadratic})
    for (const int m : {3, 300})
      for (const double radius : {0.0, 1.0})
        for (const bool queries : {true, false}) {
          cuda::AttentionModel description;
          description.radius = radius;
          description.features = {feature_model(kind, m)};
          description.positions = {{}};
          const cuda::DeviceModel model(description, {.n_q = n, .n_k = n, .d_v = 1}, false, nullptr);
          const auto r = static_cast<std::size_t>(model.r());
          const DeviceArray<float> phi(n * r), log_scales(std::size_t{n}), tile(n * r), log_factors(std::size_t{n}),
              other_tile(n * r), other_log_factors(std::size_t{n});
          const DeviceArray<int> largest(std::size_t{1});
          auto task = model.features<float, float>({on_device.data(), n, d}, queries, nullptr, nullptr, nullptr, 1);
          const std::size_t bytes =
              sizeof(float) * (static_cast<std::size_t>(task.d_padded + cuda::OneTokenShape::warps) + r);
          cuda::launch("features of tokens", kernel, dim3{1, 1, 1}, dim3{cuda::OneTokenShape::threads, 1, 1}, bytes,
                       nullptr, task, phi.data(), log_scales.data());
          // features without the factors of rows are those of queries
          task = model.features<float, float>({on_device.data(), n, d}, true, nullptr, nullptr, tile.data(), n);
          task.log_factors = log_factors.data();
          auto other =
              model.features<float, float>({on_device.data(), n, d}, true, nullptr, nullptr, other_tile.data(), n);
          other.log_factors = other_log_factors.data();
          // features of queries and of keys, which may not be written to the same array
          cuda::queue_features(task, other, 1, nullptr);
          const std::vector<float> got = phi.fetch(), expected = tile.fetch(), scales = log_scales.fetch(),
                                   factors = log_factors.fetch();
          INFO("kind " << static_cast<int>(kind) << ", m " << m << ", radius " << radius << ", queries " << queries);
          double worst = 0, worst_scale = 0;
          for (std::size_t t = 0; t < n; ++t) {
            for (std::size_t k = 0; k < r; ++k)
              worst = std::max(worst, static_cast<double>(std::abs(got[t * r + k] - expected[k * n + t])) /
                                          (1 + static_cast<double>(std::abs(expected[k * n + t]))));
            worst_scale = std::max(
                worst_scale, static_cast<double>(std::abs(scales[t] - (kind == FeatureKind::elu ? 0.0f : factors[t]))));
          }
          // x' = s x and projections are sums of d terms, of magnitude |w| |x| < 16, in other orders
          CHECK(worst <= 2 * 16 * eps);
          CHECK(worst_scale <= 2 * 16 * eps);
        }
}

}  // namespace nprf::test::cuda_decoder_token_features
