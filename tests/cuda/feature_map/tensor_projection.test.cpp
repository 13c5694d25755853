// SPDX-License-Identifier: MIT
#include "nprf/cuda/feature_map/tensor_projection.cuh"

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_feature_map_tensor_projection {

namespace {

constexpr int tokens = 16;

// z (16, m rounded up to 32) of rows that are d apart, and their squares (16)
template <class S>
__global__ void kernel(const S* x, const uint4* fragments, int m, int d, bool scales, float* z, float* squares) {
  cuda::start_kernel();
  using Projection = cuda::TensorProjection<S>;
  if constexpr (Projection::exists) {
    const int lane = static_cast<int>(threadIdx.x), g = lane / 4, columns = (m + 31) / 32 * 32;
    Projection projection({x + g * d, x + (g + 8) * d}, fragments, d);
    if (scales) projection.scale_extreme(g == 3 && lane % 2 == 1);  // token 11
    typename Projection::Chunk chunk;
    for (int f0 = 0; f0 < m; f0 += Projection::chunk) {
      projection.project(f0, chunk);
      for (int h = 0; h < 2; ++h)
        for (int i = 0; i < Projection::group; ++i)
          z[(g + 8 * h) * columns + f0 + Projection::first() + i] = chunk.z(h, i);
    }
    const float square = chunk.own_square();
    if (lane % 4 < 2) squares[g + lane % 2 * 8] = square;
  }
}

struct Projected {
  Matrix<double> z;        // times the unit
  Vector<double> squares;  // of tokens
};

template <class S>
Projected project(const Matrix<float>& x, const Matrix<float>& w, bool scales = false) {
  const int m = static_cast<int>(w.rows()), d = static_cast<int>(w.cols()), columns = (m + 31) / 32 * 32;
  const float unit = cuda::unit_of_parts<S>(w.cwiseAbs().maxCoeff());
  std::vector<uint4> parts;
  cuda::append_fragments<S>(parts, w.data(), m, d, unit);
  REQUIRE(static_cast<int>(parts.size()) == cuda::ProjectionFragments::size(m, d));
  const DeviceArray<S> tokens_on_device(stored<S>(x));
  const DeviceArray<uint4> fragments(parts);
  const DeviceArray<float> z(static_cast<std::size_t>(tokens * columns)), squares(std::size_t{tokens});
  cuda::launch("test", kernel<S>, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, tokens_on_device.data(), fragments.data(),
               m, d, scales, z.data(), squares.data());
  return {static_cast<double>(unit) * as_floats(z.fetch(), tokens, columns).cast<double>(),
          as_floats(squares.fetch(), tokens, 1).cast<double>()};
}

template <class S>
bool has_tensor_cores() {
  return can_multiply<S, cuda::MmaShape::m16n8k8>();
}

// of an entry of the projection
template <class S>
double part_error(double w, double largest) {
  return std::is_same_v<S, __half> ? std::ldexp(w, -23) + std::ldexp(largest, -37) : std::ldexp(w, -17);
}

// tokens of one channel each give back the entries of the projection
template <class S>
void check_entries(double scale) {
  if (!has_tensor_cores<S>()) return;
  constexpr int m = 40, d = 48;
  Matrix<float> w = static_cast<float>(scale) * normal<float>(m, d, 1);
  w(3, 5) = 0, w(4, 6) *= 0x1p-10f, w(5, 7) *= 0x1p-20f, w(39, 47) *= 0x1p10f;
  const double largest = static_cast<double>(w.cwiseAbs().maxCoeff());
  for (int k0 = 0; k0 < d; k0 += tokens) {
    Matrix<float> x = Matrix<float>::Zero(tokens, d);
    for (int t = 0; t < tokens; ++t) x(t, k0 + t) = 1;
    const Matrix<double> z = project<S>(x, w).z;
    for (int t = 0; t < tokens; ++t)
      for (int f = 0; f < z.cols(); ++f) {
        const double expected = static_cast<double>(w(std::min(f, m - 1), k0 + t));
        CHECK(std::abs(z(t, f) - expected) <= part_error<S>(std::abs(expected), largest));
      }
  }
}

// rounding of tokens is no error of theirs
template <class S>
void check_products() {
  if (!has_tensor_cores<S>()) return;
  constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  for (const int d : {16, 64, 80})
    for (const int m : {1, 32, 70}) {
      const Matrix<float> w = normal<float>(m, d, 1);
      const Matrix<float> x = as_floats(stored<S>(normal<float>(tokens, d, 2)), tokens, d);
      const Projected got = project<S>(x, w);
      const Matrix<double> X = x.cast<double>(), W = w.cast<double>(), expected = X * W.transpose(),
                           magnitudes = X.cwiseAbs() * W.cwiseAbs().transpose();
      // a sum of 2 d products has as many roundings, each of which may truncate
      const double most = part_error<S>(1, W.cwiseAbs().maxCoeff()) + 2 * d * eps;
      INFO("d " << d << ", m " << m);
      CHECK(((got.z.leftCols(m) - expected).array().abs() <= most * magnitudes.array()).all());
      const Vector<double> squares = X.rowwise().squaredNorm();
      CHECK(((got.squares - squares).array().abs() <= d * eps * squares.array()).all());
    }
}

}  // namespace

TEST_CASE("parts of projections have the errors that are stated, for entries of any scale", "[cuda]") {
  for (const double scale : {1.0, 1e-12, 1e12}) {
    check_entries<__nv_bfloat16>(scale);
    check_entries<__half>(scale);
  }
}

TEST_CASE("projections by tensor cores are those of sums in double", "[cuda]") {
  check_products<__nv_bfloat16>();
  check_products<__half>();
}

TEST_CASE("only extreme tokens are scaled before they are projected", "[cuda]") {
  using S = __nv_bfloat16;
  if (!has_tensor_cores<S>()) return;
  constexpr int m = 8, d = 32;
  const Matrix<float> w = normal<float>(m, d, 1);
  for (const float scale : {1e-30f, 1e30f}) {
    Matrix<float> x = as_floats(stored<S>(normal<float>(tokens, d, 2)), tokens, d);
    const Matrix<double> expected = project<S>(x, w).z;
    const double largest = static_cast<double>(x.row(11).cwiseAbs().maxCoeff());
    x.row(11) *= std::exp2(std::round(std::log2(scale)));
    const Projected got = project<S>(x, w, true);
    for (int t = 0; t < tokens; ++t) {
      const double unit = t == 11 ? std::exp2(std::floor(std::log2(largest)) + 1) : 1;
      CHECK(unit * got.z.row(t) == expected.row(t));
    }
    CHECK(std::isfinite(got.squares(11)));
    CHECK(got.squares(11) >= 0.25);
  }
}

}  // namespace nprf::test::cuda_feature_map_tensor_projection
