# SPDX-License-Identifier: MIT
#
# nprf::levels: nprf::nprf for programs that are compiled for any x86-64 processor. Its slow code is compiled for the
# program's own flags and for x86-64-v3 and v4, and the program runs what its processor supports (nprf/levels.hpp).
# On other architectures it is nprf::compiled. Without GNU ld and objcopy there is no such target.

include(${CMAKE_CURRENT_LIST_DIR}/compiled.cmake)

if(NOT TARGET nprf::levels)
  set(sources ${CMAKE_CURRENT_LIST_DIR})
  if(NOT UNIX OR APPLE OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    add_library(nprf::levels ALIAS nprf_compiled)
    return()
  endif()
  # lld, which may link the program, has no --force-group-allocation
  find_program(NPRF_GNU_LD ld.bfd)
  find_program(NPRF_OBJCOPY objcopy)
  mark_as_advanced(NPRF_GNU_LD NPRF_OBJCOPY)
  if(NOT NPRF_GNU_LD OR NOT NPRF_OBJCOPY)
    return()
  endif()
  set(objects "")
  foreach(level baseline v3 v4)
    # all code of the level
    add_library(nprf_level_${level} OBJECT EXCLUDE_FROM_ALL ${sources}/levels/level.cpp)
    foreach(name attention_float attention_double product_float product_double)
      target_sources(nprf_level_${level} PRIVATE ${sources}/instances/${name}.cpp)
    endforeach()
    target_link_libraries(nprf_level_${level} PRIVATE nprf::nprf)
    # a matrix may be allocated on one side and freed on the other: both call malloc and free, and align to 16 bytes
    target_compile_definitions(nprf_level_${level} PRIVATE NPRF_SEPARATE=1 NPRF_LEVEL=nprf_level_${level}
      EIGEN_MAX_ALIGN_BYTES=16 EIGEN_MALLOC_ALREADY_ALIGNED=1)
    if(NOT level STREQUAL "baseline")
      target_compile_options(nprf_level_${level} PRIVATE -march=x86-64-${level})
    endif()
    # objcopy leaves symbols global that g++ makes unique in the process
    target_compile_options(nprf_level_${level} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    set_target_properties(nprf_level_${level} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF
      UNITY_BUILD OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    # becomes one object whose symbols are local but for its table, and for what a process has once
    set(object ${CMAKE_CURRENT_BINARY_DIR}/nprf_level_${level}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${NPRF_GNU_LD} -r --force-group-allocation -o ${object} "$<TARGET_OBJECTS:nprf_level_${level}>"
      COMMAND ${NPRF_OBJCOPY} --redefine-sym malloc=nprf_level_malloc --wildcard --keep-global-symbol=nprf_level_${level}
        --keep-global-symbol=_ZTIN4nprf* --keep-global-symbol=_ZTSN4nprf*
        --keep-global-symbol=_ZN4nprf6detail17requested_threadsE
        --keep-global-symbol=_ZZN4nprf3fft13planner_mutexEvE5mutex ${object}
      DEPENDS nprf_level_${level} "$<TARGET_OBJECTS:nprf_level_${level}>"
      COMMENT "One object of nprf's level ${level}"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(nprf_levels STATIC EXCLUDE_FROM_ALL ${sources}/levels/levels.cpp ${objects})
  # what has no levels
  foreach(name product_float product_double decoder sample)
    target_sources(nprf_levels PRIVATE ${sources}/instances/${name}.cpp)
  endforeach()
  add_library(nprf::levels ALIAS nprf_levels)
  target_link_libraries(nprf_levels PUBLIC nprf::nprf)
  target_compile_definitions(nprf_levels PUBLIC NPRF_X86_64_LEVELS=1)
  set_target_properties(nprf_levels PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
