// SPDX-License-Identifier: MIT
#include "nprf/core/compiled_flags.hpp"

#include <concepts>

#include "support/catch.hpp"

namespace nprf::test::core_compiled_flags {

TEST_CASE("the flags of this file are its register width, alignment and build switches", "[core]") {
  constexpr Index width = Pack<float>::size;
  constexpr int alignment = EIGEN_MAX_ALIGN_BYTES;
  constexpr bool fftw = NPRF_USE_FFTW != 0, openmp = NPRF_USE_OPENMP != 0;
  STATIC_REQUIRE(std::same_as<CompiledFlags<float>, CompiledFlags<float, width, alignment, fftw, openmp>>);
  // a file that differs in one of them refers to another function
  void (*const own)() = &CompiledFlags<float>::same_flags;
  void (*const others[])() = {&CompiledFlags<double>::same_flags,
                              &CompiledFlags<float, 2 * width, alignment, fftw, openmp>::same_flags,
                              &CompiledFlags<float, width, 2 * alignment, fftw, openmp>::same_flags,
                              &CompiledFlags<float, width, alignment, !fftw, openmp>::same_flags,
                              &CompiledFlags<float, width, alignment, fftw, !openmp>::same_flags};
  for (void (*const other)() : others) CHECK(other != own);
}

}  // namespace nprf::test::core_compiled_flags
