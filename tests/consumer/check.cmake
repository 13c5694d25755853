# SPDX-License-Identifier: MIT
#
# Builds and runs a consumer against nprf as found by WAY. compiled, levels: find_package after the README's commands,
# nprf::compiled or nprf::levels, and a program that calls attention. The others are for a program that uses what nprf
# links: install by find_package after the README's commands, find_package and pkg_config with the build BUILD,
# installed, which has FFTW, add_subdirectory with FFTW, bare by add_subdirectory without OpenMP.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(consumer ${SOURCE}/tests/consumer)
file(REMOVE_RECURSE ${WORK})
set(program linked)

if(WAY STREQUAL "add_subdirectory")
  set(arguments -D NPRF_SOURCE=${SOURCE} -D NPRF_USE_FFTW=ON)
elseif(WAY STREQUAL "bare")
  set(arguments -D NPRF_SOURCE=${SOURCE} -D NPRF_USE_OPENMP=OFF)
  set(unwanted "fftw|gomp")
elseif(WAY MATCHES "^(install|compiled|levels)$")
  run(${CMAKE_COMMAND} -S ${SOURCE} --preset install -B ${WORK}/install -D CMAKE_CXX_COMPILER=${CXX})
  run(${CMAKE_COMMAND} --install ${WORK}/install --prefix ${WORK}/prefix)
  set(arguments -D CMAKE_PREFIX_PATH=${WORK}/prefix)
  if(WAY STREQUAL "compiled")
    set(program main)
  elseif(WAY STREQUAL "levels")
    set(program levels)
  endif()
  if(NOT WAY STREQUAL "install")
    list(APPEND arguments -D nprf=nprf::${WAY})
  endif()
  set(unwanted "fftw")
else()
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
  set(arguments -D CMAKE_PREFIX_PATH=${WORK}/prefix)
endif()

if(WAY STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} ${WORK}/prefix/share/pkgconfig)
  execute_process(COMMAND pkg-config --cflags --libs nprf OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  file(MAKE_DIRECTORY ${WORK}/build)
  run(${CXX} -std=c++20 ${consumer}/${program}.cpp ${consumer}/second.cpp ${flags} -o ${WORK}/build/consumer)
else()
  run(${CMAKE_COMMAND} -S ${consumer} -B ${WORK}/build -G Ninja -D CMAKE_CXX_COMPILER=${CXX} -D program=${program} ${arguments})
  # the presets of ctest run two tests at a time
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR jobs "(${cores} + 1) / 2")
  run(${CMAKE_COMMAND} --build ${WORK}/build --parallel ${jobs})
endif()
run(${WORK}/build/consumer)

if(WAY STREQUAL "compiled")
  # files with other build switches do not link with the compiled code
  execute_process(COMMAND ${CXX} -std=c++20 -DNPRF_SEPARATE=1 -DNPRF_USE_OPENMP=0 -pthread
      -I${WORK}/prefix/include -isystem ${EIGEN} ${consumer}/main.cpp
      ${WORK}/build/libnprf_compiled.a -o ${WORK}/build/mixed
    RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(result EQUAL 0 OR NOT said MATCHES "AttentionCore.*CompiledFlags")
    message(FATAL_ERROR "expected the linker to miss code for these flags, got ${result}:\n${said}")
  endif()
endif()

if(WAY STREQUAL "levels")
  foreach(level baseline v3 v4)
    # the linker can use only the table of a level, so that it cannot take a function of it for the program's
    execute_process(COMMAND nm --extern-only --defined-only --format=posix ${WORK}/build/nprf_level_${level}.o
      OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    if(NOT symbols MATCHES "nprf_level_${level} [DR] " OR symbols MATCHES " [TWtwui] ")
      message(FATAL_ERROR "expected no global function of level ${level}, got\n${symbols}")
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E env NPRF_CPU_LEVEL=${level} ${WORK}/build/consumer
      RESULT_VARIABLE result OUTPUT_VARIABLE of_level ERROR_VARIABLE error)
    if(error MATCHES "expected at most [a-z0-9]+ on this processor")
      message("level ${level} is not run: this processor does not support it")
      continue()
    endif()
    set(expected "hash [0-9]+")
    if(NOT level STREQUAL "baseline")
      execute_process(COMMAND ${WORK}/build/only_${level} OUTPUT_VARIABLE expected COMMAND_ERROR_IS_FATAL ANY)
      string(STRIP "${expected}" expected)
    endif()
    if(NOT result EQUAL 0 OR NOT of_level MATCHES "level ${level}\n${expected}\n")
      message(FATAL_ERROR "expected level ${level} and the results of a program for it alone, got\n${of_level}${error}")
    endif()
  endforeach()
endif()

if(unwanted)
  execute_process(COMMAND ldd ${WORK}/build/consumer OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
  if(libraries MATCHES "${unwanted}")
    message(FATAL_ERROR "linked to a library that was not asked for (${unwanted}):\n${libraries}")
  endif()
endif()
