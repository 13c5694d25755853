// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/cuda.hpp"
#include "nprf/cuda/toeplitz/engines.cuh"
#include "support/random.hpp"

namespace nprf::test {

inline const std::vector<cuda::Engine> cuda_engines{cuda::Engine::direct, cuda::Engine::banded, cuda::Engine::fused,
                                                    cuda::Engine::cufft, cuda::Engine::smooth};

/// Whether rows of an engine may fail the FFT error bound. With a near field and with features that are a series, exact
/// softmax replaces such rows, which are others on the CPU.
inline bool uses_fft(cuda::Engine engine) { return !cuda::properties_of(engine).is_tiled; }

/// Which keys [batch, n_k] are no padding, for a plan and for the CPU. None: all are.
struct KeyMask {
  explicit KeyMask(std::vector<unsigned char> keys_) : keys(std::move(keys_)), on_device(keys) {}
  cuda::PlanCall call() const {
    return {.key_mask = keys.empty() ? nullptr : reinterpret_cast<const bool*>(on_device.data())};
  }
  OptionSpan<bool> on_cpu() const { return {reinterpret_cast<const bool*>(keys.data()), keys.size()}; }

  std::vector<unsigned char> keys;
  DeviceArray<unsigned char> on_device;
};

/// The queries, keys and values of one head, for a plan and for the CPU.
struct PlanCase {
  PlanCase(const cuda::PlanShape& shape_, const cuda::PlanOptions& options_, Index d)
      : shape(shape_),
        options(options_),
        q(normal<float>(shape.n_q, d, 1)),
        k(normal<float>(shape.n_k, d, 2)),
        v(normal<float>(shape.n_k, shape.d_v, 3)) {}

  template <class S = float, class F, class P>
  std::unique_ptr<cuda::AttentionPlan<S>> plan(const Attention<F, P>& attention) const {
    return std::make_unique<cuda::AttentionPlan<S>>(cuda::model_of(attention), shape, options);
  }

  /// y of a plan. Its memory is NaN before the call.
  template <class S>
  Matrix<float> result(const cuda::AttentionPlan<S>& plan, const cuda::PlanCall& call = {},
                       cuda::Counts* counts = nullptr) const {
    const DeviceArray<S> dq(stored<S>(q)), dk(stored<S>(k)), dv(stored<S>(v)),
        dy(stored<S>(Matrix<float>::Constant(shape.n_q, shape.d_v, std::numeric_limits<float>::quiet_NaN())));
    plan.forward({dq.data(), q.rows(), q.cols()}, {dk.data(), k.rows(), k.cols()}, {dv.data(), v.rows(), v.cols()},
                 {dy.data(), shape.n_q, shape.d_v}, call, nullptr);
    if (counts) *counts = plan.host_counts(call);
    return as_floats(dy.fetch(), shape.n_q, shape.d_v);
  }
  template <class S = float, class F, class P>
  Matrix<float> result(const Attention<F, P>& attention, cuda::Counts* counts = nullptr) const {
    return result<S>(*plan<S>(attention), {}, counts);
  }

  /// The largest |y - y'| / max |v|, where y' is the CPU's result in double, for inputs rounded to S.
  template <class S, class F, class P>
  double error(const Attention<F, P>& attention, const cuda::AttentionPlan<S>& plan,
               const cuda::PlanCall& call = {}) const {
    const auto as_stored = [](const Matrix<float>& x) { return as_floats(stored<S>(x), x.rows(), x.cols()); };
    const Matrix<float> expected =
        attention(as_stored(q), as_stored(k), as_stored(v), {.offset = shape.offset, .tolerance = 1e-6});
    const Matrix<float> y = result<S>(plan, call);
    const double largest = static_cast<double>(v.size() == 0 ? 1.0f : v.cwiseAbs().maxCoeff());
    double worst = 0;
    for (Index i = 0; i < y.size(); ++i) {
      const double difference = std::abs(static_cast<double>(y.data()[i]) - static_cast<double>(expected.data()[i]));
      if (!(difference <= worst)) worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
    return worst / largest;
  }
  template <class S = float, class F, class P>
  double error(const Attention<F, P>& attention) const {
    return error<S>(attention, *plan<S>(attention));
  }
  /// The same without what an FFT may have added to it, for plans whose rows may not fail the FFT error bound.
  template <class F, class P>
  double error_beyond_fft(const Attention<F, P>& attention) const {
    const auto own = plan(attention);
    cuda::Counts counts{};
    result(*own, {}, &counts);
    return error(attention, *own) - static_cast<double>(counts.fft_error_bound);
  }

  cuda::PlanShape shape;
  cuda::PlanOptions options;
  Matrix<float> q, k, v;
};

}  // namespace nprf::test
