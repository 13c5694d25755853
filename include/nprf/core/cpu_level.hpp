// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

namespace nprf {

/// The instruction sets for which nprf::levels compiles its code (levels.hpp): the program's own, and the
/// microarchitecture levels of x86-64 with AVX2 (v3) and with AVX-512 (v4).
enum class CpuLevel { baseline, v3, v4 };

#if NPRF_X86_64_LEVELS

/// The level whose code runs: the highest that the processor supports, chosen at the first call and then the same for
/// the process. The environment variable NPRF_CPU_LEVEL (baseline, v3 or v4) selects another. If the variable names no
/// level, or one that the processor does not support, this function throws InvalidArgument, and so does every call of
/// an attention.
CpuLevel cpu_level();

#endif

}  // namespace nprf
