# SPDX-License-Identifier: MIT
#
# nprf::compiled: nprf::nprf whose code is compiled once, in a library of the project that uses it. Both
# must have the same -march flags: set them for the directory (add_compile_options, CMAKE_CXX_FLAGS), not for a target.

if(NOT TARGET nprf_compiled)
  add_library(nprf_compiled STATIC EXCLUDE_FROM_ALL)
  foreach(name attention_float attention_double product_float product_double decoder sample)
    target_sources(nprf_compiled PRIVATE ${CMAKE_CURRENT_LIST_DIR}/instances/${name}.cpp)
  endforeach()
  add_library(nprf::compiled ALIAS nprf_compiled)
  target_link_libraries(nprf_compiled PUBLIC nprf::nprf)
  target_compile_definitions(nprf_compiled PUBLIC NPRF_SEPARATE=1)
  # so that several cores compile them, whatever the project's setting
  set_target_properties(nprf_compiled PROPERTIES UNITY_BUILD OFF)
endif()
