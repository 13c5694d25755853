# SPDX-License-Identifier: MIT
#
# A header includes headers of its own room and of lower levels: cmake -D INCLUDE=<dir> -P layers.cmake

# a room is a folder, without what is listed by itself
set(levels
  "config.hpp"
  "core"
  "fft feature_map normalize position cuda/device"
  "attention decoder/running_log_scale.hpp decoder/step_bias.hpp cuda/model.hpp cuda/fft cuda/position"
  "decoder/options.hpp decoder/decoder_model.hpp toeplitz/factors.hpp toeplitz/cost.hpp cuda/toeplitz/row_sums.cuh"
  "toeplitz/engine.hpp cuda/toeplitz/engine.cuh"
  "toeplitz/direct toeplitz/fft cuda/toeplitz/direct"
  "toeplitz/banded toeplitz/block_causal toeplitz/fftw toeplitz/smooth toeplitz/plan/failing_share.hpp cuda/toeplitz/banded cuda/toeplitz/fft"
  "cuda/toeplitz/smooth"
  "toeplitz cuda/error_bound cuda/toeplitz/engines.cuh"
  "attention/weights cuda/toeplitz"
  "attention/scaling cuda/toeplitz/backward cuda/feature_map"
  "attention/fallback cuda/attention cuda/decoder"
  "attention/exact cuda/plan"
  "attention/batch cuda/instances.cuh"
  "decoder reference"
  "calibration"
  "levels.hpp"
  "implementation.hpp"
  "nprf.hpp cuda.hpp")

# headers that device code may include, which is compiled without a matrix library
set(device_headers "config|core/(compensated_sum|engine|error|fitted_decays|fitted_tails|index|lag_problem|lags|lower_lags|plain_pack|row_quotient|slots)|fft/length")
string(APPEND device_headers "|decoder/(running_log_scale|step_bias)")
string(APPEND device_headers "|toeplitz/(fft/convolution_error|plan/failing_share|smooth/(block_pairs|chunk_blocks|plan|polynomials))")

set(level 0)
foreach(rooms ${levels})
  string(REPLACE " " ";" rooms ${rooms})
  foreach(room ${rooms})
    if(NOT EXISTS ${INCLUDE}/nprf/${room})
      message(FATAL_ERROR "${room} has a level, but does not exist")
    endif()
    set(level_${room} ${level})
  endforeach()
  math(EXPR level "${level} + 1")
endforeach()

# the innermost room with a level that a header is in, or nothing
function(find_room header result)
  set(room ${header})
  while(room AND NOT DEFINED level_${room})
    if(NOT room MATCHES "/")
      set(room "")
    endif()
    string(REGEX REPLACE "/[^/]*$" "" room "${room}")
  endwhile()
  set(${result} "${room}" PARENT_SCOPE)
endfunction()

set(errors "")
set(checked 0)
file(GLOB_RECURSE headers RELATIVE ${INCLUDE}/nprf ${INCLUDE}/nprf/*.hpp ${INCLUDE}/nprf/*.cuh)
foreach(header ${headers})
  find_room(${header} room)
  if(NOT room)
    list(APPEND errors "${header} is in no room that has a level")
    continue()
  endif()
  file(STRINGS ${INCLUDE}/nprf/${header} includes REGEX "^#include")
  foreach(include ${includes})
    if(include MATCHES "\"[.][.]?/")
      list(APPEND errors "${header}: ${include} is relative")
    elseif(include MATCHES "<fftw3.h>" AND NOT header STREQUAL "fft/fftw.hpp")
      list(APPEND errors "${header} includes fftw3.h, which only fft/fftw.hpp does")
    endif()
    if(NOT include MATCHES "[<\"]nprf/([^\">]+)")
      continue()
    endif()
    set(target ${CMAKE_MATCH_1})
    # a header that only declares ends with its definitions, unless NPRF_SEPARATE
    if(target MATCHES "_definition[.]hpp$" AND NOT header MATCHES "_definition[.]hpp$|^implementation[.]hpp$")
      continue()
    endif()
    math(EXPR checked "${checked} + 1")
    find_room(${target} target_room)
    if(NOT target_room)
      list(APPEND errors "${header} includes ${target}, which is in no room that has a level")
    elseif(NOT room STREQUAL target_room AND NOT level_${target_room} LESS level_${room})
      list(APPEND errors "${header} includes ${target}, which is not below ${room}")
    endif()
    if(target_room STREQUAL "reference" AND NOT room MATCHES "^(reference|implementation.hpp|nprf.hpp)$")
      list(APPEND errors "${header} includes ${target}, which only nprf.hpp and implementation.hpp do")
    elseif(target MATCHES "^cuda" AND room MATCHES "^(nprf|implementation|levels).hpp$")
      list(APPEND errors "${header} includes ${target}")
    elseif(header MATCHES "[.]cuh$" AND NOT target MATCHES "^(cuda/|(${device_headers})[.]hpp$)" OR
            header MATCHES "^(${device_headers})[.]hpp$" AND NOT target MATCHES "^(${device_headers})[.]hpp$" OR
           header MATCHES "^cuda/" AND target STREQUAL "cuda/plan/model_of.hpp")
      list(APPEND errors "${header} includes ${target}, but device code is compiled without a matrix library")
    endif()
  endforeach()
endforeach()

if(checked EQUAL 0)
  message(FATAL_ERROR "no include found under ${INCLUDE}/nprf")
endif()
if(errors)
  list(JOIN errors "\n  " errors)
  message(FATAL_ERROR "includes that break the order of tests/layers.cmake:\n  ${errors}")
endif()
message("${checked} includes are in order")
