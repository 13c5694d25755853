// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "cuda/stand_in/cuda_runtime.h"

/// The part of cuFFT that nprf uses, implemented with FFTW.

enum cufftResult { CUFFT_SUCCESS = 0, CUFFT_INVALID_PLAN = 1, CUFFT_INVALID_VALUE = 4, CUFFT_EXEC_FAILED = 6 };
enum cufftType { CUFFT_C2C = 0x29 };
constexpr int CUFFT_FORWARD = -1, CUFFT_INVERSE = 1;

using cufftHandle = int;
using cufftComplex = float2;

cufftResult cufftCreate(cufftHandle* plan);
cufftResult cufftDestroy(cufftHandle plan);
cufftResult cufftSetAutoAllocation(cufftHandle plan, int automatic);
cufftResult cufftMakePlanMany(cufftHandle plan, int rank, int* n, int* inembed, int istride, int idist, int* onembed,
                              int ostride, int odist, cufftType type, int batch, std::size_t* bytes);
cufftResult cufftSetWorkArea(cufftHandle plan, void* memory);
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream);
cufftResult cufftExecC2C(cufftHandle plan, cufftComplex* in, cufftComplex* out, int direction);
