// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// A type that stands for what must be the same in all files of a program that share compiled code
/// (implementation.hpp): the width of vector registers, the alignment of Eigen's matrices and the build switches. The
/// compiled functions that a file calls have an argument of this type. Files that differ, for example in their -march
/// flags, do not link: the linker reports a function with their flags as undefined.
template <Real T, Index pack_size = Eigen::internal::packet_traits<T>::size, int alignment = EIGEN_MAX_ALIGN_BYTES,
          bool use_fftw = NPRF_USE_FFTW != 0, bool use_openmp = NPRF_USE_OPENMP != 0>
struct CompiledFlags {};

}  // namespace nprf
