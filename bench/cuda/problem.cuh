// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nprf/cuda.hpp"
#include "nprf/nprf.hpp"

namespace nprf::bench {

constexpr Index head_dim = 64;

/// A case to compute: heads of n tokens with d = d_v = 64, and positive features with orthogonal rows.
struct Case {
  std::string pass, storage, position, direction;
  Index batch, heads, n, m;
  std::string engine;

  Direction attention_direction() const { return direction == "causal" ? Direction::causal : Direction::bidirectional; }
  bool gradients() const { return pass == "both" || pass == "both16"; }
  cuda::PlanShape shape() const { return {.batch = batch, .heads = heads, .n_q = n, .n_k = n, .d_v = head_dim}; }
  cuda::Engine requested_engine() const {
    using enum cuda::Engine;
    for (const cuda::Engine candidate : {automatic, direct, banded, fused, cufft, smooth})
      if (name(candidate) == engine) return candidate;
    throw std::runtime_error("unknown engine " + engine);
  }
  /// What determines the arrays and the reference. The engine does not.
  auto problem() const { return std::tie(pass, storage, position, direction, batch, heads, n, m); }
};

inline std::istream& operator>>(std::istream& in, Case& x) {
  return in >> x.pass >> x.storage >> x.position >> x.direction >> x.batch >> x.heads >> x.n >> x.m >> x.engine;
}

inline Vector<float> draw(Index size, std::uint64_t stream) {
  return NormalDeviates(2021, stream).matrix(size, 1).col(0).cast<float>();
}

/// dense: a different bias for each lag, N(0,1) clipped to +-3. t5: 32 buckets up to distance 128, likewise.
template <class Use>
auto with_attention(const Case& x, Use&& use) {
  const auto cut = [](const Vector<float>& b) { return Vector<float>(b.cwiseMax(-3.0f).cwiseMin(3.0f)); };
  const auto features = orf<float>(head_dim, x.m);
  const AttentionOptions options{.direction = x.attention_direction()};
  if (x.position == "t5")
    return use(Attention(features, t5_position<float>(cut(draw(32, 5)), x.attention_direction()), options));
  return use(Attention(features, RelativePosition<float>(cut(draw(2 * x.n - 1, 6))), options));
}

/// Fills x with N(0,1) deviates, which are the same in every run.
template <class S>
__global__ void normal_kernel(S* x, std::size_t size, std::uint64_t stream) {
  const auto mixed = [](std::uint64_t z) {  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t k = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; k < size; k += step) {
    const std::uint64_t bits = mixed((stream << 40) + (k + 1) * 0x9e3779b97f4a7c15ull);
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(bits & 0xffffff) * 0x1p-23f;
    cuda::store(x + k, sqrtf(-2 * logf(u)) * cospif(angle));
  }
}

/// q, k, v and y [batch, heads, n, d] on the device; with gradients also dy, dq, dk and dv.
template <cuda::Storage S>
class Arrays {
 public:
  explicit Arrays(const Case& x) : m_case(x), m_size(static_cast<std::size_t>(x.batch * x.heads * x.n * head_dim)) {
    for (cuda::DeviceMemory* memory : {&m_q, &m_k, &m_v, &m_y}) *memory = cuda::DeviceMemory(m_size * sizeof(S));
    normal_kernel<S><<<1024, 256>>>(q().data, m_size, 1);
    normal_kernel<S><<<1024, 256>>>(k().data, m_size, 2);
    normal_kernel<S><<<1024, 256>>>(v().data, m_size, 3);
    if (!x.gradients()) return;
    for (cuda::DeviceMemory* memory : {&m_dy, &m_dq, &m_dk, &m_dv}) *memory = cuda::DeviceMemory(m_size * sizeof(S));
    normal_kernel<S><<<1024, 256>>>(dy().data, m_size, 4);
  }

  cuda::DeviceMatrixView<S> q() const { return view(m_q); }
  cuda::DeviceMatrixView<S> k() const { return view(m_k); }
  cuda::DeviceMatrixView<S> v() const { return view(m_v); }
  cuda::DeviceMatrixView<S> y() const { return view(m_y); }
  cuda::DeviceMatrixView<S> dy() const { return view(m_dy); }
  cuda::PlanGradients<S> gradients() const { return {view(m_dq), view(m_dk), view(m_dv)}; }

  /// Fills the results with NaN.
  void fill_results_with_nan() const {
    for (const cuda::DeviceMemory* memory : {&m_y, &m_dq, &m_dk, &m_dv})
      if (memory->data()) cuda::check(cudaMemset(memory->data(), 0xff, m_size * sizeof(S)), "filling results");
  }

  /// Matrix z of an array, in double.
  Matrix<double> fetch(const cuda::DeviceMatrixView<S>& x, Index z) const {
    const Index size = m_case.n * head_dim;
    std::vector<S> values(static_cast<std::size_t>(size));
    cuda::check(cudaMemcpy(values.data(), x.data + z * size, values.size() * sizeof(S), cudaMemcpyDeviceToHost),
                "fetching");
    Matrix<double> out(m_case.n, head_dim);
    for (Index i = 0; i < size; ++i) out.data()[i] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    return out;
  }

 private:
  cuda::DeviceMatrixView<S> view(const cuda::DeviceMemory& memory) const {
    return {static_cast<S*>(memory.data()), m_case.batch, m_case.heads, m_case.n, head_dim};
  }

  Case m_case;
  std::size_t m_size;
  cuda::DeviceMemory m_q, m_k, m_v, m_y, m_dy, m_dq, m_dk, m_dv;
};

/// The reference that results are checked against, so that a wrong result is not reported as fast. The CPU computes it
/// in double from the model's float parameters: some rows of y, each by one call, or all gradients.
class Reference {
 public:
  template <cuda::Storage S>
  Reference(const Case& x, const Arrays<S>& arrays) : m_z(x.batch * x.heads - 1), m_rows{0, x.n / 3, x.n - 1} {
    const Matrix<double> q = arrays.fetch(arrays.q(), m_z), k = arrays.fetch(arrays.k(), m_z),
                         v = arrays.fetch(arrays.v(), m_z);
    with_attention(x, [&](const auto& attention) {
      const PositiveFeatures<double> features(attention.features().projection().template cast<double>());
      const auto compute = [&](auto position) {
        const Attention exact(features, std::move(position), {.direction = x.attention_direction()});
        m_y.resize(3, head_dim);
        for (Index s = 0; s < 3; ++s) m_y.row(s) = exact(Matrix<double>(q.row(m_rows[s])), k, v, {.offset = m_rows[s]});
        if (!x.gradients()) return;
        Saved<double> saved;
        exact.forward(q, k, v, saved);
        const Gradients<double> found = exact.backward(saved, arrays.fetch(arrays.dy(), m_z));
        m_gradients = {found.queries, found.keys, found.values};
      };
      const auto& position = attention.position();
      if constexpr (requires { position.bucket_weights(); })
        compute(T5Position<double>(position.bucket_weights().template cast<double>(), x.attention_direction()));
      else
        compute(RelativePosition<double>(position.bias().table.template cast<double>()));
    });
  }

  /// The largest error of a result, relative to its largest entry; infinity if it is not finite.
  template <cuda::Storage S>
  double error(const Arrays<S>& arrays) const {
    const Matrix<double> y = arrays.fetch(arrays.y(), m_z);
    Matrix<double> rows(3, head_dim);
    for (Index s = 0; s < 3; ++s) rows.row(s) = y.row(m_rows[s]);
    double worst = y.allFinite() ? difference(rows, m_y) : std::numeric_limits<double>::infinity();
    if (m_gradients.empty()) return worst;
    const cuda::PlanGradients<S> gradients = arrays.gradients();
    const std::array views{gradients.dq, gradients.dk, gradients.dv};
    for (std::size_t g = 0; g < views.size(); ++g)
      worst = std::max(worst, difference(arrays.fetch(views[g], m_z), m_gradients[g]));
    return worst;
  }

 private:
  static double difference(const Matrix<double>& x, const Matrix<double>& expected) {
    if (!x.allFinite()) return std::numeric_limits<double>::infinity();
    return (x - expected).cwiseAbs().maxCoeff() / expected.cwiseAbs().maxCoeff();
  }

  Index m_z;
  std::array<Index, 3> m_rows;
  Matrix<double> m_y;                       // (rows,d_v)
  std::vector<Matrix<double>> m_gradients;  // of queries, keys and values; empty without gradients
};

}  // namespace nprf::bench
