// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

/// While an object of this class exists, nothing that its thread queues by launch(), queue_fill() and CufftPlan is run,
/// and no memory of theirs is accessed: launch() only loads the kernel, and kernels of cuFFT are not loaded. Otherwise
/// CUDA loads a kernel when it is first used (lazy loading), which may fail while the stream is captured in a graph,
/// and delays the first call.
class KernelLoading {
 public:
  KernelLoading() : m_was_active(active()) { active() = true; }
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;
  ~KernelLoading() { active() = m_was_active; }

  /// Whether this thread has an object of this class.
  static bool is_active() { return active(); }

 private:
  static bool& active() {
    static thread_local bool value = false;
    return value;
  }

  bool m_was_active;
};

/// Queues a memset: sets `bytes` bytes from `to` on to `byte`. Throws BackendError with the operation if CUDA reports
/// an error.
inline void queue_fill(const char* what, void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  if (!KernelLoading::is_active()) check(cudaMemsetAsync(to, byte, bytes, stream), what);
}

}  // namespace nprf::cuda
