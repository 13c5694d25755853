// SPDX-License-Identifier: MIT
#include "nprf/cuda/feature_map/forward.cuh"

#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_feature_map_forward {

namespace {

using cuda::FeatureKind;
constexpr int heads = 2, n = 70;
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

// features [z, n, r] of queries, then of keys, with the padding of rows that are stored by token
template <class Feature>
Matrix<float> features(const cuda::DeviceModel& model, const DeviceArray<float>& q, const DeviceArray<float>& k,
                       const bool* mask = nullptr) {
  const int r = model.r(), row = (r + 15) / 16 * 16, d = model.d();
  const int stride = cuda::by_token<Feature> ? row : n + 3;
  const std::size_t size = static_cast<std::size_t>(heads * (cuda::by_token<Feature> ? n : r) * stride);
  const DeviceArray<Feature> phi_q(size), phi_k(size);
  const DeviceArray<int> max_log_scale(heads);
  cuda::queue_features(
      model.features<float>({q.data(), 1, heads, n, d}, true, nullptr, nullptr, phi_q.data(), stride),
      model.features<float>({k.data(), 1, heads, n, d}, false, mask, max_log_scale.data(), phi_k.data(), stride), heads,
      nullptr);
  Matrix<float> y = Matrix<float>::Zero(2 * heads * n, row);
  for (const bool queries : {true, false}) {
    const std::vector<Feature> stored = (queries ? phi_q : phi_k).fetch();
    for (int z = 0; z < heads; ++z)
      for (int t = 0; t < n; ++t)
        for (int f = 0; f < (cuda::by_token<Feature> ? row : r); ++f) {
          const int at = cuda::by_token<Feature> ? (z * n + t) * row + f : (z * r + f) * stride + t;
          y(((queries ? 0 : heads) + z) * n + t, f) = as_float(stored[static_cast<std::size_t>(at)]);
        }
  }
  return y;
}

cuda::AttentionModel model_of(FeatureKind kind, int d, int m, double radius) {
  cuda::AttentionModel model;
  model.radius = radius;
  const int rows = kind == FeatureKind::elu ? 0 : m;
  model.features = {{kind, d, rows, stored<float>(normal<float>(rows, d, 2))}};
  model.positions = {{}};
  return model;
}

// exponential features of queries, then of keys, of one norm, from their definition
Matrix<double> expected(const Matrix<double>& q, const Matrix<double>& k, const Matrix<double>& w, bool both_signs) {
  const Index m = w.rows(), r = both_signs ? 2 * m : m;
  Matrix<double> y(2 * heads * n, r);
  for (const bool queries : {true, false})
    for (Index z = 0; z < heads; ++z) {
      Matrix<double> e(n, r);
      e.leftCols(m) = (queries ? q : k).middleRows(z * n, n).rowwise().normalized() * w.transpose();
      if (both_signs) e.rightCols(m) = -e.leftCols(m);
      const double most = e.maxCoeff();
      for (Index t = 0; t < n; ++t)
        y.row((queries ? 0 : heads * n) + z * n + t) =
            (e.row(t).array() - (queries ? e.row(t).maxCoeff() : most)).exp();
    }
  return y;
}

}  // namespace

TEST_CASE("exponential features agree with their definition, for tokens of any scale", "[cuda]") {
  // rows that are loaded by single channels, and by 16 bytes; tokens whose squares underflow or overflow, too
  for (const int d : {6, 20, 64})
    for (const int m : {3, 40, 70})
      for (const double scale : {1.0, 1e-30, 1e30}) {
        const Matrix<double> x = normal<double>(2 * heads * n, d, 1);
        const Matrix<double> q = scale * x.topRows(heads * n), k = scale * x.bottomRows(heads * n);
        const DeviceArray<float> device_q(stored<float>(q.cast<float>())), device_k(stored<float>(k.cast<float>()));
        for (const FeatureKind kind : {FeatureKind::positive, FeatureKind::hyperbolic}) {
          cuda::AttentionModel model = model_of(kind, d, m, 1);
          // so long that the largest log-scale of keys is searched for
          for (float& w : model.features[0].projection) w *= 20;
          const cuda::DeviceModel device_model(model, {.heads = heads, .n_q = n, .n_k = n, .d_v = 1}, {}, nullptr);
          REQUIRE(device_model.needs_log_scales());
          const Matrix<double> w = as_floats(model.features[0].projection, m, d).cast<double>();
          const Matrix<double> got =
              features<float>(device_model, device_q, device_k).cast<double>().leftCols(device_model.r());
          INFO("d " << d << ", m " << m << ", scale " << scale << ", kind " << static_cast<int>(kind));
          // exponents are differences of sums of magnitude |w| < 250, relative to features of at most 1
          CHECK((got - expected(q, k, w, kind == FeatureKind::hyperbolic)).cwiseAbs().maxCoeff() <= 4 * 250 * eps);
        }
      }
}

TEST_CASE("features by token are the rounded features by channel, padded with zeros", "[cuda]") {
  constexpr int d = 6;
  const DeviceArray<float> q(stored<float>(normal<float>(heads * n, d, 1))),
      k(stored<float>(normal<float>(heads * n, d, 3)));
  std::vector<unsigned char> mask(n, 1);
  mask[5] = mask[66] = 0;
  const DeviceArray<unsigned char> dmask(mask);
  const bool* key_mask = reinterpret_cast<const bool*>(dmask.data());
  for (const FeatureKind kind :
       {FeatureKind::positive, FeatureKind::hyperbolic, FeatureKind::trigonometric, FeatureKind::elu})
    for (const int m : {3, 16, 20})
      for (const double radius : {0.0, 1.0}) {
        const cuda::DeviceModel device_model(model_of(kind, d, m, radius),
                                             {.heads = heads, .n_q = n, .n_k = n, .d_v = 1}, {}, nullptr);
        const Matrix<float> by_channel = features<float>(device_model, q, k, key_mask);
        const Matrix<float> by_token = features<__nv_bfloat16>(device_model, q, k, key_mask);
        INFO("kind " << static_cast<int>(kind) << ", m " << m << ", radius " << radius);
        CHECK(by_token == as_floats(stored<__nv_bfloat16>(by_channel), by_channel.rows(), by_channel.cols()));
        CHECK(!by_token.row(5).isZero(0));
        for (const int t : {5, 66, n + 5, n + 66}) CHECK(by_token.row(heads * n + t).isZero(0));
        const Matrix<float> in_half = features<__half>(device_model, q, k, key_mask),
                            scaled = cuda::feature_scale<__half> * by_channel;
        CHECK(in_half == as_floats(stored<__half>(scaled), scaled.rows(), scaled.cols()));
      }
}

}  // namespace nprf::test::cuda_feature_map_forward
