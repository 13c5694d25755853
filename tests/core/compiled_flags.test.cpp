// SPDX-License-Identifier: MIT
#include "nprf/core/compiled_flags.hpp"

#include <concepts>

#include "support/catch.hpp"

namespace nprf::test::core_compiled_flags {

TEST_CASE("the flags of this file are its register width, alignment and build switches", "[core]") {
  constexpr Index width = sizeof(Eigen::internal::packet_traits<float>::type) / sizeof(float);
  constexpr int alignment = EIGEN_MAX_ALIGN_BYTES;
  constexpr bool fftw = NPRF_USE_FFTW != 0, openmp = NPRF_USE_OPENMP != 0;
  STATIC_REQUIRE(std::same_as<CompiledFlags<float>, CompiledFlags<float, width, alignment, fftw, openmp>>);
}

}  // namespace nprf::test::core_compiled_flags
