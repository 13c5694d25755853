// SPDX-License-Identifier: MIT
// expected: nprf/cuda.hpp is for programs that are compiled with CUDA
#include "nprf/cuda.hpp"
