// SPDX-License-Identifier: MIT
#pragma once

namespace nprf::python {

/// The name of the capsules by which the module for the CPU gives a cuda::AttentionModel to the module for GPUs.
inline constexpr const char* cuda_model_name = "nprf.cuda.AttentionModel";

}  // namespace nprf::python
