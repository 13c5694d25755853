// SPDX-License-Identifier: MIT
#include "nprf/cuda/feature_map/tensor_forward.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_feature_map_tensor_forward {

namespace {

using cuda::FeatureKind;
constexpr int heads = 4, heads_k = 2, n = 70;

struct Features {
  Matrix<double> phi;  // of queries, then of keys: [z, n, stride]
  Vector<double> log_factors, log_scales;
};

// one map for each head of queries, or one for all, which heads of keys are shared by
struct Case {
  FeatureKind kind;
  int d, m;
  double radius = 1, length = 1;  // of rows of the projection, times those of normal numbers
  bool shares_map = true, has_mask = false;
  int stride = 0;  // of features

  double largest_w() const {
    double largest = 0;
    for (const auto& one : model().features)
      largest = std::max(largest, as_floats(one.projection, m, d).cast<double>().rowwise().norm().maxCoeff());
    return largest;
  }

  cuda::AttentionModel model() const {
    cuda::AttentionModel all;
    all.radius = radius;
    for (int head = 0; head < (shares_map ? 1 : heads); ++head)
      all.features.push_back(
          {kind, d, m,
           stored<float>(static_cast<float>(length) * normal<float>(m, d, 10 + static_cast<unsigned>(head)))});
    all.positions = {{}};
    return all;
  }

  // by tensor cores, or by the kernel that computes in float
  template <class Feature, class S>
  Features compute(const std::vector<S>& q, const std::vector<S>& k, bool on_tensor_cores) const {
    cuda::DeviceModel device_model(model(), {.heads = heads, .n_q = n, .n_k = n, .d_v = 1, .heads_k = heads_k}, {},
                                   nullptr);
    if (on_tensor_cores) device_model.split_projections<S>(cuda::Device::current(), nullptr);
    const DeviceArray<S> device_q(q), device_k(k);
    const auto of_heads = static_cast<std::size_t>(heads * n);
    const DeviceArray<Feature> phi_q(of_heads * static_cast<std::size_t>(stride)),
        phi_k(std::vector<Feature>(of_heads * static_cast<std::size_t>(stride)));
    const DeviceArray<float> log_factors(of_heads);
    const DeviceArray<int> log_scales(std::vector<int>(std::size_t{heads}, 0));
    std::vector<unsigned char> mask(n, 1);
    mask[5] = mask[66] = 0;
    const DeviceArray<unsigned char> device_mask(mask);
    const bool* key_mask = has_mask ? reinterpret_cast<const bool*>(device_mask.data()) : nullptr;
    cuda::FeatureTask<S, Feature> queries =
        device_model.features<S>({device_q.data(), 1, heads, n, d}, true, key_mask, nullptr, phi_q.data(), stride);
    cuda::FeatureTask<S, Feature> keys = device_model.features<S>({device_k.data(), 1, heads_k, n, d}, false, key_mask,
                                                                  log_scales.data(), phi_k.data(), stride);
    queries.log_factors = log_factors.data();
    REQUIRE(queries.uses_tensor_cores() == on_tensor_cores);
    REQUIRE(keys.uses_tensor_cores() == on_tensor_cores);
    cuda::queue_features(queries, keys, heads, nullptr);
    Features all;
    all.phi = Matrix<double>(2 * heads * n, stride);
    all.phi << as_floats(phi_q.fetch(), heads * n, stride).template cast<double>(),
        as_floats(phi_k.fetch(), heads * n, stride).template cast<double>();
    all.log_factors = as_floats(log_factors.fetch(), heads * n, 1).cast<double>();
    all.log_scales = Vector<double>(heads);
    const std::vector<int> ordered = log_scales.fetch();
    for (int z = 0; z < heads; ++z)
      all.log_scales(z) = static_cast<double>(as_float(ordered[static_cast<std::size_t>(z)]));
    return all;
  }
  static float as_float(int ordered) {
    const int bits = ordered < 0 ? ordered ^ 0x7fffffff : ordered;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }
};

// errors of exponents or angles, which are differences of two projections of rows of this norm
template <class S>
double exponent_error(const Case& x, double norm) {
  constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  const double part = std::is_same_v<S, __half> ? 0x1p-23 : 0x1p-17;
  return 2 * (part + 2 * x.d * eps) * norm * std::max(norm, x.largest_w());
}

template <class S, class Feature>
void check(Case x, const Matrix<float>& q, const Matrix<float>& k, double norm) {
  const int r = x.kind == FeatureKind::positive ? x.m : 2 * x.m;
  x.stride = (r + 15) / 16 * 16;
  INFO("kind " << static_cast<int>(x.kind) << ", d " << x.d << ", m " << x.m << ", radius " << x.radius << ", length "
               << x.length);
  const Features got = x.compute<Feature>(stored<S>(q), stored<S>(k), true),
                 expected = x.compute<Feature>(stored<S>(q), stored<S>(k), false);
  const double error = exponent_error<S>(x, norm);
  CHECK((got.log_factors - expected.log_factors).cwiseAbs().maxCoeff() <= error);
  CHECK((got.log_scales - expected.log_scales).cwiseAbs().maxCoeff() <= error);
  // both are rounded: to steps of 2^-24 in half, relative to features of up to 2^14
  const double rounding = std::is_same_v<Feature, __half> ? 0x1p-10 : 0x1p-7;
  for (Index row = 0; row < got.phi.rows(); ++row) {
    const double largest = expected.phi.row(row).cwiseAbs().maxCoeff();
    Index wrong = 0;
    for (Index f = 0; f < got.phi.cols(); ++f) {
      const double a = got.phi(row, f), b = expected.phi(row, f);
      const double magnitude = x.kind == FeatureKind::trigonometric ? largest : std::abs(b);
      wrong += !(std::abs(a - b) <= std::expm1(error) * magnitude + rounding * std::abs(b) + 0x1p-24);
    }
    if (wrong > 0) FAIL("row " << row << ": " << got.phi.row(row) << ", expected " << expected.phi.row(row));
  }
}

template <class S>
Matrix<float> tokens(int rows, int d, unsigned seed) {
  return as_floats(stored<S>(normal<float>(rows, d, seed)), rows, d);
}

template <class S, class Feature>
void check_all() {
  if (!can_multiply<S, cuda::MmaShape::m16n8k8>() || !can_multiply<Feature, cuda::MmaShape::m16n8k8>()) return;
  for (const FeatureKind kind : {FeatureKind::positive, FeatureKind::hyperbolic, FeatureKind::trigonometric})
    for (const auto& [d, m] : {std::pair{16, 8}, {64, 32}, {80, 72}}) {
      const Case x{.kind = kind, .d = d, .m = m, .shares_map = false, .has_mask = true};
      check<S, Feature>(x, tokens<S>(heads * n, d, 1), tokens<S>(heads_k * n, d, 2), 1);
    }
}

}  // namespace

TEST_CASE("features by tensor cores are those of projections in float", "[cuda]") {
  check_all<__nv_bfloat16, __nv_bfloat16>();
  check_all<__half, __nv_bfloat16>();
  check_all<__half, __half>();
}

TEST_CASE("features by tensor cores of rows that are not a multiple of groups", "[cuda]") {
  using S = __nv_bfloat16;
  if (!can_multiply<S>()) return;
  for (const int m : {1, 3, 33, 41}) {
    const Case x{.kind = FeatureKind::positive, .d = 32, .m = m};
    check<S, S>(x, tokens<S>(heads * n, x.d, 1), tokens<S>(heads_k * n, x.d, 2), 1);
  }
}

TEST_CASE("features by tensor cores of tokens of any scale", "[cuda]") {
  using S = __nv_bfloat16;
  if (!can_multiply<S>()) return;
  for (const FeatureKind kind : {FeatureKind::positive, FeatureKind::trigonometric})
    for (const float scale : {0.0f, 0x1p-120f, 0x1p-60f, 0x1p60f, 0x1p120f}) {
      const Case x{.kind = kind, .d = 32, .m = 40};
      Matrix<float> q = tokens<S>(heads * n, x.d, 1), k = tokens<S>(heads_k * n, x.d, 2);
      for (const int t : {0, 17, 24, 69, 75}) q.row(t) *= scale, k.row(t) *= scale;
      check<S, S>(x, q, k, 1);
    }
}

TEST_CASE("features by tensor cores are divided by the largest log-scale of keys", "[cuda]") {
  using S = __nv_bfloat16;
  if (!can_multiply<S>()) return;
  for (const FeatureKind kind : {FeatureKind::positive, FeatureKind::hyperbolic, FeatureKind::trigonometric})
    for (const double radius : {0.0, 4.0}) {
      const Case x{.kind = kind, .d = 32, .m = 40, .radius = radius, .length = 2, .shares_map = radius > 0};
      const Matrix<float> q = tokens<S>(heads * n, x.d, 1), k = tokens<S>(heads_k * n, x.d, 2);
      // rows times d^(-1/4) have norms below 4
      check<S, S>(x, q, k, 4);
    }
}

TEST_CASE("features by tensor cores of non-finite tokens are NaN", "[cuda]") {
  using S = __nv_bfloat16;
  if (!can_multiply<S>()) return;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const double radius : {0.0, 1.0}) {
    Case x{.kind = FeatureKind::positive, .d = 32, .m = 40, .radius = radius, .has_mask = true, .stride = 48};
    Matrix<float> q = tokens<S>(heads * n, x.d, 1), k = tokens<S>(heads_k * n, x.d, 2);
    const Features finite = x.compute<S>(stored<S>(q), stored<S>(k), true);
    q(3, 4) = std::numeric_limits<float>::quiet_NaN(), q(20, 31) = -infinity, k(30, 0) = infinity;
    k(66, 2) = infinity;  // padding
    const Features got = x.compute<S>(stored<S>(q), stored<S>(k), true);
    const Index first_key = heads * n;
    for (Index row = 0; row < got.phi.rows(); ++row) {
      INFO("radius " << radius << ", row " << row);
      if (row == 3 || row == 20 || (row == first_key + 30 && radius > 0))
        CHECK(got.phi.row(row).head(x.m).array().isNaN().all());
      else if (row != first_key + 30)
        CHECK(got.phi.row(row) == finite.phi.row(row));
    }
  }
}

TEST_CASE("rows that are not aligned do not use tensor cores", "[cuda]") {
  using S = __nv_bfloat16;
  if (!can_multiply<S>()) return;
  const Case x{.kind = FeatureKind::positive, .d = 32, .m = 5};
  cuda::DeviceModel model(x.model(), {.heads = heads, .n_q = n, .n_k = n, .d_v = 1}, {}, nullptr);
  const auto uses = [&]<class Feature>(std::ptrdiff_t token_stride) {
    cuda::DeviceMatrixView<const S> view(nullptr, 1, heads, n, x.d);
    view.token_stride = token_stride;
    return model.features<S, Feature>(view, true, nullptr, nullptr, nullptr, 0).uses_tensor_cores();
  };
  CHECK_FALSE(uses.operator()<S>(32));
  model.split_projections<S>(cuda::Device::current(), nullptr);
  CHECK(uses.operator()<S>(32));
  CHECK(uses.operator()<S>(40));
  CHECK_FALSE(uses.operator()<S>(36));
  CHECK_FALSE(uses.operator()<float>(32));
}

}  // namespace nprf::test::cuda_feature_map_tensor_forward
