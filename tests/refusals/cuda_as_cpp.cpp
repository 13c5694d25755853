// SPDX-License-Identifier: MIT
// expected: nprf's CUDA headers contain device code: compile this file as CUDA
#define NPRF_ENABLE_CUDA 1
#include "nprf/cuda.hpp"
