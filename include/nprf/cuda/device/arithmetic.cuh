// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

/// Sets *is_kept to whether a subnormal product of floats is kept, and not rounded to zero. The factors are parameters,
/// so that compilers cannot compute the product.
template <int>
__global__ void subnormal_kernel(float smallest_normal, float half, bool* is_kept) {
  start_kernel();
  *is_kept = smallest_normal * half > 0;
}

/// Throws BackendError if the kernels were compiled by nvcc with -use_fast_math or -ftz=true. Both round subnormal
/// numbers to zero; with -use_fast_math divisions and roots are inexact, too. No macro tells a header of these options.
/// Waits for the stream.
inline void check_arithmetic(cudaStream_t stream) {
  const DeviceMemory memory(sizeof(bool));
  bool is_kept = false;
  launch("checking arithmetic", subnormal_kernel<0>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, stream,
         smallest_normal_number<float>, 0.5f, static_cast<bool*>(memory.data()));
  check(cudaMemcpyAsync(&is_kept, memory.data(), sizeof(bool), cudaMemcpyDeviceToHost, stream), "checking arithmetic");
  check(cudaStreamSynchronize(stream), "checking arithmetic");
  if (!is_kept)
    throw BackendError(
        "CUDA: expected kernels compiled with subnormal numbers and exact rounding, got -use_fast_math or -ftz=true");
}

}  // namespace nprf::cuda
