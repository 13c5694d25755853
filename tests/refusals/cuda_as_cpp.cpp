// SPDX-License-Identifier: MIT
// expected: nprf's CUDA headers contain device code: compile this file as CUDA
// flags: -DNPRF_ENABLE_CUDA=1
#include "nprf/cuda.hpp"
