// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/log_domain_pairs.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_log_domain_pairs {

namespace {

constexpr int heads = 2, n_q = 40, n_k = 70, m = 5, p = 3, lags = n_q + n_k - 1;
constexpr int last_attended = 20, padding = 11;  // a key of padding
using Shape = cuda::LogDomainGradientShape;

struct PairOutput {
  float p, g, h, h_slope[m];
};

// the pairs of the matrix blockIdx.y, by tiles of rows and of keys; [z, row of the list, key]
__global__ void pairs_kernel(cuda::LogDomainGradientTask<float> task, PairOutput* out) {
  cuda::start_kernel();
  const int z = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const cuda::LogDomainRows<float> rows(task, z);
  for (int at = 0; at < rows.count(); at += Shape::rows) {
    rows.normalise(at);
    for (int j0 = 0; j0 < n_k; j0 += Shape::keys) {
      const cuda::PairTile<float> tile(rows, at, j0);
      for (int e = thread; e < Shape::rows * Shape::keys; e += Shape::threads) {
        const int k = e / Shape::keys, t = e % Shape::keys;
        if (at + k >= rows.count() || j0 + t >= n_k) continue;
        PairOutput& to = out[(z * n_q + at + k) * n_k + j0 + t];
        to = {tile.p(k, t), tile.g(k, t), tile.h(k, t), {}};
        for (int f = 0; f < m; ++f)
          to.h_slope[f] = tile.h(k, t) * rows.slope(f, rows[at + k], j0 + t, tile.max_exponent(k, t));
      }
    }
  }
}

// rows of two heads, of which all exponents are given
struct Case {
  Matrix<float> e_q = normal<float>(heads * m, n_q, 1), e_k = normal<float>(heads * m, n_k, 2);
  Matrix<float> log_factor = -normal<float>(heads, n_k, 3).cwiseAbs();
  Matrix<float> b = 30 * normal<float>(heads, lags, 4), dy = normal<float>(heads * n_q, p, 5);
  Matrix<float> U = normal<float>(heads * (p + 1), n_k, 6);
  std::vector<std::vector<int>> rows{{0, 3, 4, 5, 9, 10, 11, 12, 13, 20, 21, 22, 23, 24, 25, 26, 30, 31, 39}, {7, 38}};

  bool attends(int i, int j) const { return j != padding && j - i <= last_attended; }
};

// of one row, in double
struct Expected {
  Expected(const Case& x, bool hyperbolic, int z, int i) {
    Vector<double> l = Vector<double>::Constant(n_k, -std::numeric_limits<double>::infinity());
    pi = Matrix<double>::Zero(m, n_k);
    for (int j = 0; j < n_k; ++j) {
      if (!x.attends(i, j)) continue;
      double sum = 0;
      for (int f = 0; f < m; ++f) {
        const double e = static_cast<double>(x.e_q(z * m + f, i)) + static_cast<double>(x.e_k(z * m + f, j));
        sum += hyperbolic ? 2 * std::cosh(e) : std::exp(e);
        pi(f, j) = hyperbolic ? 2 * std::sinh(e) : std::exp(e);
      }
      pi.col(j) /= sum;
      l[j] = std::log(sum) + static_cast<double>(x.log_factor(z, j)) + static_cast<double>(x.b(z, j - i + n_q - 1));
    }
    weights = (l.array() - l.maxCoeff()).exp();
    weights /= weights.sum();
    const Matrix<double> v = x.U.middleRows(z * (p + 1), p).transpose().cast<double>();
    const Vector<double> dy_v = v * x.dy.row(z * n_q + i).transpose().cast<double>();
    largest_dy_v = dy_v.cwiseAbs().maxCoeff();
    g = weights.cwiseProduct((dy_v.array() - weights.dot(dy_v)).matrix());
  }

  Vector<double> weights, g;
  Matrix<double> pi;
  double largest_dy_v;
};

cuda::DeviceMatrixView<const float> view(const DeviceArray<float>& x, Index tokens, Index channels) {
  return {x.data(), 1, heads, tokens, channels};
}

std::vector<PairOutput> pairs_of(const Case& x, bool hyperbolic) {
  const DeviceArray<float> e_q(stored<float>(x.e_q)), e_k(stored<float>(x.e_k)), b(stored<float>(x.b)),
      log_factor(stored<float>(x.log_factor)), dy(stored<float>(x.dy)), U(stored<float>(x.U)), none(0);
  std::vector<int> list(heads * n_q), counts;
  std::vector<std::int32_t> identity(lags);
  std::iota(identity.begin(), identity.end(), 0);
  for (std::size_t z = 0; z < heads; ++z) {
    std::copy(x.rows[z].begin(), x.rows[z].end(), list.begin() + static_cast<std::ptrdiff_t>(z * n_q));
    counts.push_back(static_cast<int>(x.rows[z].size()));
  }
  std::vector<unsigned char> mask(n_k, 1);
  mask[padding] = 0;
  const DeviceArray<unsigned char> device_mask(mask);
  const DeviceArray<std::int32_t> index(identity);
  const DeviceArray<int> rows(list), device_counts(counts);
  const DeviceArray<double> sum(heads * n_q);
  const DeviceArray<float> dy_y(heads * n_q);
  const DeviceArray<PairOutput> out(heads * n_q * n_k);

  const auto features = [&](int n, const bool* key_mask) {
    const cuda::FeatureKind kind = hyperbolic ? cuda::FeatureKind::hyperbolic : cuda::FeatureKind::positive;
    return cuda::FeatureTask<float>{view(none, n, 1),    key_mask, nullptr, 0,       nullptr, 0, kind, m, 4, 1, 1,
                                    key_mask == nullptr, 0,        nullptr, nullptr, n,       {}};
  };
  const cuda::DeviceBias bias{b.data(), index.data(), heads, lags, lags, 1 - n_q, last_attended, n_q, {}, false};
  const cuda::LogDomainGradientTask<float> task{
      features(n_q, nullptr),
      features(n_k, reinterpret_cast<const bool*>(device_mask.data())),
      view(dy, n_q, p),
      cuda::Operand<float>::by_channel(U.data(), heads, n_k, p + 1, n_k),
      bias,
      heads,
      heads,
      {nullptr, device_counts.data(), nullptr, nullptr, nullptr, nullptr},
      {rows.data(), e_q.data(), e_k.data(), log_factor.data(), sum.data(), dy_y.data()},
      nullptr};
  cuda::launch("test", pairs_kernel, dim3{1, heads, 1}, dim3{Shape::threads, 1, 1}, Shape::shared, nullptr, task,
               out.data());
  return out.fetch();
}

}  // namespace

TEST_CASE("pairs in the log domain have the weights and gradients of the formula", "[cuda]") {
  const Case x;
  for (const bool hyperbolic : {false, true}) {
    INFO((hyperbolic ? "hyperbolic" : "positive"));
    const std::vector<PairOutput> pairs = pairs_of(x, hyperbolic);
    for (int z = 0; z < heads; ++z)
      for (std::size_t k = 0; k < x.rows[static_cast<std::size_t>(z)].size(); ++k) {
        const int i = x.rows[static_cast<std::size_t>(z)][k];
        const Expected expected(x, hyperbolic, z, i);
        for (int j = 0; j < n_k; ++j) {
          const PairOutput& pair = pairs[(static_cast<std::size_t>(z) * n_q + k) * n_k + static_cast<std::size_t>(j)];
          INFO("z " << z << ", query " << i << ", key " << j);
          if (!x.attends(i, j)) {
            CHECK((pair.p == 0 && pair.g == 0 && pair.h == 0));
            continue;
          }
          // sums over keys, features and columns, the exponents' own errors, and of log p when it is rounded to float
          const double weight = expected.weights[j], eps = static_cast<double>(std::numeric_limits<float>::epsilon());
          const double tiny = static_cast<double>(std::numeric_limits<float>::min());
          const double relative = eps * (n_k + 2 * m + 10 - std::log(std::max(weight, tiny)));
          const double of_g = 4 * relative * weight * expected.largest_dy_v + tiny;
          CHECK(std::abs(static_cast<double>(pair.p) - weight) <= relative * weight + tiny);
          CHECK(std::abs(static_cast<double>(pair.g) - expected.g[j]) <= of_g);
          for (int f = 0; f < m; ++f)
            CHECK(std::abs(static_cast<double>(pair.h_slope[f]) - expected.g[j] * expected.pi(f, j)) <= 2 * of_g);
        }
      }
  }
}

}  // namespace nprf::test::cuda_attention_log_domain_pairs
