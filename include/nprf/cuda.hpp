// SPDX-License-Identifier: MIT
#pragma once

/// Kernelized attention on NVIDIA GPUs, with nprf's own feature maps and positions: none, tables, T5, ALiBi and grids
/// with extra tokens. Start with plan/attention_plan.cuh, which also has plans of packed sequences.
/// plan/decode_plan.cuh is for sequences that grow token by token. toeplitz/engine.cuh lists the engines, and the
/// positions that each of them supports. A file that includes this header compiles the kernels of the plans that it
/// uses; in programs of many files cuda/instances.cuh avoids this.

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/model_of.hpp"
