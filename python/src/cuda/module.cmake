# SPDX-License-Identifier: MIT
#
# nprf._cuda: plans for tensors on a GPU.

nanobind_add_module(nprf_cuda NB_STATIC STABLE_ABI src/cuda/module.cpp src/cuda/float32.cu)
set_target_properties(nprf_cuda PROPERTIES OUTPUT_NAME _cuda CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_compile_features(nprf_cuda PRIVATE cxx_std_20)
target_compile_definitions(nprf_cuda PRIVATE NPRF_ENABLE_CUDA=1 NPRF_USE_FFTW=0)
target_include_directories(nprf_cuda PRIVATE include src)
target_link_libraries(nprf_cuda PRIVATE Eigen3::Eigen)
install(TARGETS nprf_cuda LIBRARY DESTINATION nprf)

if(NPRF_PYTHON_CUDA_HALVES)
  set(halves src/cuda/float16.cu src/cuda/bfloat16.cu)
endif()
target_compile_definitions(nprf_cuda PRIVATE NPRF_PYTHON_CUDA_HALVES=$<BOOL:${NPRF_PYTHON_CUDA_HALVES}>)

if(NPRF_PYTHON_CUDA_ON_HOST)
  # kernels run on the host, in its memory
  set(tests ${CMAKE_CURRENT_SOURCE_DIR}/../tests)
  find_package(Boost REQUIRED COMPONENTS context)
  find_library(fftw3f fftw3f REQUIRED)
  set_source_files_properties(src/cuda/float32.cu ${halves} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
  target_sources(nprf_cuda PRIVATE ${halves} ${tests}/cuda/stand_in/machine.cpp ${tests}/cuda/stand_in/cufft.cpp)
  target_compile_definitions(nprf_cuda PRIVATE NPRF_CUDA_ON_HOST=1 NPRF_PYTHON_DEVICE=nb::device::cpu)
  # before CUDA's own headers, and mma.cuh before nprf's
  target_include_directories(nprf_cuda BEFORE PRIVATE ${tests}/cuda/stand_in ${tests})
  # small arrays: the compiler takes longer than the tests
  target_compile_options(nprf_cuda PRIVATE -O0 -Wno-unknown-pragmas)
  target_link_libraries(nprf_cuda PRIVATE Boost::context ${fftw3f})
  return()
endif()

find_package(CUDAToolkit 12.0 REQUIRED)
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
target_sources(nprf_cuda PRIVATE ${halves})
target_compile_definitions(nprf_cuda PRIVATE NPRF_PYTHON_DEVICE=nb::device::cuda)
# CMake 3.25 knows no C++20 for nvcc 13, and Eigen's functions for host and device make warnings
target_compile_options(nprf_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-w>)
target_link_libraries(nprf_cuda PRIVATE CUDA::cudart CUDA::cufft)
