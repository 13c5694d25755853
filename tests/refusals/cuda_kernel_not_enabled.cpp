// SPDX-License-Identifier: MIT
// expected: nprf's CUDA headers are for programs that are compiled with CUDA
#include "nprf/cuda/device/launch.cuh"
