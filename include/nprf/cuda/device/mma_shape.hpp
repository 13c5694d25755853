// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>

namespace nprf::cuda {

/// The types that tensor cores multiply here. float does not use tensor cores.
template <class T>
concept MmaFactor = std::same_as<T, __half> || std::same_as<T, __nv_bfloat16>;

/// The instruction that multiplies. m16n8k16 multiplies half and bfloat16 from compute capability 8.0 on, m16n8k8 half
/// from 7.5 on, and m8n8k4 half from 7.0 on. native: of these three, in this order, the first one that the device code
/// can have.
enum class MmaShape { native, m8n8k4, m16n8k8, m16n8k16 };

/// The order in which the factors of m8n8k4 are distributed over the lanes.
enum class MmaLayout { row, column };

}  // namespace nprf::cuda
