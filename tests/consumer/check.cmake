# SPDX-License-Identifier: MIT
#
# Builds and runs the consumer against nprf as found by WAY: find_package, add_subdirectory (with and without
# FFTW and OpenMP) or pkg_config.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(consumer ${SOURCE}/tests/consumer)
file(REMOVE_RECURSE ${WORK})

if(WAY STREQUAL "add_subdirectory")
  set(arguments -D NPRF_SOURCE=${SOURCE})
elseif(WAY STREQUAL "bare")
  set(arguments -D NPRF_SOURCE=${SOURCE} -D NPRF_USE_FFTW=OFF -D NPRF_USE_OPENMP=OFF)
else()
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
  set(arguments -D CMAKE_PREFIX_PATH=${WORK}/prefix)
endif()

if(WAY STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} ${WORK}/prefix/share/pkgconfig)
  execute_process(COMMAND pkg-config --cflags --libs nprf OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  file(MAKE_DIRECTORY ${WORK}/build)
  run(${CXX} -std=c++20 ${consumer}/main.cpp ${consumer}/second.cpp ${flags} -o ${WORK}/build/consumer)
else()
  run(${CMAKE_COMMAND} -S ${consumer} -B ${WORK}/build -G Ninja -D CMAKE_CXX_COMPILER=${CXX} ${arguments})
  run(${CMAKE_COMMAND} --build ${WORK}/build)
endif()
run(${WORK}/build/consumer)

if(WAY STREQUAL "bare")
  execute_process(COMMAND ldd ${WORK}/build/consumer OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
  if(libraries MATCHES "fftw|gomp")
    message(FATAL_ERROR "built without FFTW and OpenMP, but linked to them:\n${libraries}")
  endif()
endif()
