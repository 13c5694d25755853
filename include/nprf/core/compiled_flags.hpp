// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/core/pack.hpp"

namespace nprf {

/// What must be the same in all files of a program that share compiled instances (instances.hpp): the width of vector
/// registers, the alignment of Eigen's matrices and the build switches. Files that differ, for example in their
/// -march flags, do not link: the linker reports same_flags() as undefined for the flags without instances.
template <Real T, Index pack_size = Pack<T>::size, int alignment = EIGEN_MAX_ALIGN_BYTES,
          bool use_fftw = NPRF_USE_FFTW != 0, bool use_openmp = NPRF_USE_OPENMP != 0>
struct CompiledFlags {
  static void same_flags();
};

template <Real T, Index pack_size, int alignment, bool use_fftw, bool use_openmp>
void CompiledFlags<T, pack_size, alignment, use_fftw, use_openmp>::same_flags() {}

}  // namespace nprf
