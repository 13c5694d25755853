// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

/// While one exists, what its thread queues by launch(), queue_fill() and CufftPlan is not run, and its memory is not
/// accessed: launch() only loads the kernel, and kernels of cuFFT are not loaded. CUDA loads a kernel when it is first
/// used (lazy loading), which may fail while the stream is captured in a graph, and delays the first call.
class KernelLoading {
 public:
  KernelLoading() : m_was_active(active()) { active() = true; }
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;
  ~KernelLoading() { active() = m_was_active; }

  /// Whether one exists on this thread.
  static bool is_active() { return active(); }

 private:
  static bool& active() {
    static thread_local bool value = false;
    return value;
  }

  bool m_was_active;
};

/// Queues the setting of `bytes` bytes. Throws BackendError with the operation if CUDA reports an error.
inline void queue_fill(const char* what, void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  if (!KernelLoading::is_active()) check(cudaMemsetAsync(to, byte, bytes, stream), what);
}

}  // namespace nprf::cuda
