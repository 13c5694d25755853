// SPDX-License-Identifier: MIT
#pragma once

/// The headers of device code include this one, so that a compiler that is not for CUDA gives one error message.
/// NPRF_CUDA_ON_HOST is defined where kernels run on the host, with a stand-in for the CUDA runtime
/// (tests/cuda/stand_in).

#ifndef NPRF_ENABLE_CUDA
#error \
    "nprf's CUDA headers are for programs that are compiled with CUDA: link the CMake target nprf::cuda, which defines NPRF_ENABLE_CUDA"
#include <nprf_needs_cuda>  // there is no such file, so the compiler stops here
#elif !defined(__CUDACC__) && !defined(NPRF_CUDA_ON_HOST)
#error "nprf's CUDA headers contain device code: compile this file as CUDA, by nvcc or clang++, not as C++"
#include <nprf_needs_a_cuda_compiler>  // nor this one
#endif
