// SPDX-License-Identifier: MIT
#pragma once

/// Kernelized attention on NVIDIA GPUs, with nprf's own feature maps and positions: none, tables, T5, ALiBi and grids
/// with extra tokens. plan/attention_plan.cuh is where to start, plan/packed_plan.cuh for sequences that are packed
/// into one array, plan/decode_plan.cuh for sequences that grow token by token; toeplitz/product.cuh lists the engines,
/// and which of them a position needs. A file that includes this compiles the kernels of the plans that it uses;
/// cuda/instances.cuh is for programs of many files.

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/host_attention.cuh"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/cuda/plan/packed_plan.cuh"
