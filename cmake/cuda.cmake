# SPDX-License-Identifier: MIT
#
# nprf::cuda, for programs that include nprf/cuda.hpp, where there is a CUDA toolkit.

find_package(CUDAToolkit 12.0 QUIET)
if(CUDAToolkit_FOUND AND NOT TARGET nprf::cuda)
  add_library(nprf::cuda INTERFACE IMPORTED GLOBAL)
  target_compile_definitions(nprf::cuda INTERFACE NPRF_ENABLE_CUDA=1)
  # CMake 3.25 does not support C++20 by nvcc 13
  target_compile_options(nprf::cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  target_link_libraries(nprf::cuda INTERFACE nprf::nprf CUDA::cudart CUDA::cufft)
endif()
