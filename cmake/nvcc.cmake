# SPDX-License-Identifier: MIT
#
# What our own programs for a GPU are compiled with: for the devices that are here, or, where there are none, for those
# from Volta to Hopper that the toolkit supports. -D CMAKE_CUDA_ARCHITECTURES=70 selects others. Optimisation flags are
# for the host's code: the device's is optimised anyhow.

if(NOT TARGET nprf::cuda)
  message(FATAL_ERROR "nprf: programs for a GPU need a CUDA toolkit, 12.0 or newer")
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE here ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+[.][0-9]" here "${here}")
  if(here)
    list(TRANSFORM here REPLACE "[.]" "" OUTPUT_VARIABLE architectures)
    list(REMOVE_DUPLICATES architectures)
  else()
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
    set(architectures 70 75 80 90)
    foreach(architecture ${architectures})
      if(NOT known MATCHES "compute_${architecture}")
        list(REMOVE_ITEM architectures ${architecture})
      endif()
    endforeach()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
endif()
message(STATUS "nprf: programs for GPUs of compute capability ${CMAKE_CUDA_ARCHITECTURES} (times ten)")
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one of them: CUDA::cudart is

add_library(nprf_nvcc INTERFACE)
target_include_directories(nprf_nvcc INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})
# Eigen's functions for host and device make warnings; threads are those of files that g++ compiles
target_compile_options(nprf_nvcc INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-w>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${OpenMP_CXX_FLAGS}>>:-Xcompiler=${OpenMP_CXX_FLAGS}>)
target_link_libraries(nprf_nvcc INTERFACE nprf::cuda)
