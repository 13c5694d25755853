// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"

namespace nprf::test {

/// A stream of the current device.
class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreate(&m_stream), "a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(m_stream); }

  operator cudaStream_t() const { return m_stream; }
  void wait() const { cuda::check(cudaStreamSynchronize(m_stream), "waiting"); }

 private:
  cudaStream_t m_stream = nullptr;
};

/// A test case's arrays on the device, for calls that are queued in a stream. y is NaN before the first call.
template <cuda::Storage S>
class DeviceCase {
 public:
  explicit DeviceCase(const PlanCase& x)
      : m_case(x),
        m_q(stored<S>(x.q)),
        m_k(stored<S>(x.k)),
        m_v(stored<S>(x.v)),
        m_y(stored<S>(Matrix<float>::Constant(x.shape.n_q, x.shape.d_v, std::numeric_limits<float>::quiet_NaN()))) {}

  void queue(const cuda::AttentionPlan<S>& plan, cudaStream_t stream) const {
    const Matrix<float>&q = m_case.q, &k = m_case.k, &v = m_case.v;
    plan.forward({m_q.data(), q.rows(), q.cols()}, {m_k.data(), k.rows(), k.cols()}, {m_v.data(), v.rows(), v.cols()},
                 {m_y.data(), m_case.shape.n_q, m_case.shape.d_v}, stream);
  }

  /// Overwrites the queries.
  void set_q(const Matrix<float>& q, const Stream& stream) const {
    const std::vector<S> values = stored<S>(q);
    cuda::check(cudaMemcpyAsync(m_q.data(), values.data(), values.size() * sizeof(S), cudaMemcpyHostToDevice, stream),
                "sending");
    stream.wait();
  }

  /// The result, after all work in the stream has completed.
  Matrix<float> y(const Stream& stream) const {
    stream.wait();
    return as_floats(m_y.fetch(), m_case.shape.n_q, m_case.shape.d_v);
  }

 private:
  const PlanCase& m_case;
  DeviceArray<S> m_q, m_k, m_v, m_y;
};

}  // namespace nprf::test
