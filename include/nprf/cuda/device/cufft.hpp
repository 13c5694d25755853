// SPDX-License-Identifier: MIT
#pragma once

#include <cufft.h>

#include <cstddef>
#include <utility>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

/// Throws BackendError with the operation and cuFFT's error code unless the call succeeded.
inline void check(cufftResult status, const char* what) {
  if (status != CUFFT_SUCCESS)
    throw BackendError(nprf::detail::sentence("cuFFT: ", what, ": error ", static_cast<int>(status)));
}

/// A plan of `batch` contiguous complex in-place transforms of one length.
class CufftPlan {
 public:
  CufftPlan() = default;
  /// Throws BackendError if cuFFT cannot make the plan.
  CufftPlan(int length, int batch) : CufftPlan() {  // delegates, so that the destructor runs if this throws
    check(cufftCreate(&m_handle), "making a plan");
    m_exists = true;
    check(cufftSetAutoAllocation(m_handle, 0), "disabling automatic allocation");
    check(cufftMakePlanMany(m_handle, 1, &length, nullptr, 1, length, nullptr, 1, length, CUFFT_C2C, batch, &m_bytes),
          "making a plan");
  }
  CufftPlan(CufftPlan&& other) noexcept { swap(other); }
  CufftPlan& operator=(CufftPlan&& other) noexcept {
    swap(other);
    return *this;
  }
  ~CufftPlan() {
    if (m_exists) cufftDestroy(m_handle);
  }

  /// Bytes of scratch memory that run() needs.
  std::size_t workspace_bytes() const { return m_bytes; }

  /// Queues the transforms. Not thread-safe: the plan stores the workspace and the stream.
  void run(float2* data, int direction, void* workspace, cudaStream_t stream) const {
    require(m_exists, "plan: expected an initialised plan, got a default-constructed one");
    if (KernelLoading::is_active()) return;
    check(cufftSetWorkArea(m_handle, workspace), "setting the work area");
    check(cufftSetStream(m_handle, stream), "setting the stream");
    auto* z = reinterpret_cast<cufftComplex*>(data);
    check(cufftExecC2C(m_handle, z, z, direction), "transforming");
  }

 private:
  void swap(CufftPlan& other) noexcept {
    std::swap(m_handle, other.m_handle);
    std::swap(m_exists, other.m_exists);
    std::swap(m_bytes, other.m_bytes);
  }

  cufftHandle m_handle{};
  bool m_exists = false;
  std::size_t m_bytes = 0;
};

}  // namespace nprf::cuda
