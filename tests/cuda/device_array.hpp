// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "nprf/core/types.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"

namespace nprf::test {

/// An array on the device. The constructor sends all values, and fetch() copies all of them back.
template <class S>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : m_size(size), m_memory(size * sizeof(S)) {}
  explicit DeviceArray(const std::vector<S>& values) : DeviceArray(values.size()) {
    if (m_size == 0) return;
    cuda::check(cudaMemcpyAsync(data(), values.data(), m_size * sizeof(S), cudaMemcpyHostToDevice, nullptr), "sending");
    cuda::check(cudaStreamSynchronize(nullptr), "sending");
  }

  S* data() const { return static_cast<S*>(m_memory.data()); }

  std::vector<S> fetch() const {
    std::vector<S> values(m_size);
    if (m_size == 0) return values;
    cuda::check(cudaMemcpyAsync(values.data(), data(), m_size * sizeof(S), cudaMemcpyDeviceToHost, nullptr),
                "fetching");
    cuda::check(cudaStreamSynchronize(nullptr), "fetching");
    return values;
  }

 private:
  std::size_t m_size;
  cuda::DeviceMemory m_memory;
};

/// Conversions between float and the storage types.
inline void assign(float& to, float x) { to = x; }
inline void assign(__half& to, float x) { to = __float2half_rn(x); }
inline void assign(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

inline float as_float(float x) { return x; }
inline float as_float(__half x) { return __half2float(x); }
inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class S>
std::vector<S> stored(const Matrix<float>& x) {
  std::vector<S> values(static_cast<std::size_t>(x.size()));
  for (std::size_t k = 0; k < values.size(); ++k) assign(values[k], x.data()[k]);
  return values;
}

template <class S>
Matrix<float> as_floats(const std::vector<S>& x, Index rows, Index cols) {
  Matrix<float> values(rows, cols);
  for (std::size_t k = 0; k < x.size(); ++k) values.data()[k] = as_float(x[k]);
  return values;
}

}  // namespace nprf::test
