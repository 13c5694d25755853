// SPDX-License-Identifier: MIT
#pragma once

/// Kernelized attention on NVIDIA GPUs.

#ifndef NPRF_ENABLE_CUDA
#error \
    "nprf/cuda.hpp is for programs that are compiled with CUDA: link the CMake target nprf::cuda, which defines NPRF_ENABLE_CUDA"
#else

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/host_attention.cuh"
#include "nprf/cuda/plan/model_of.hpp"

#endif
