# SPDX-License-Identifier: MIT
#
# FFTW 3 in double and single precision: the targets FFTW3::fftw3 and FFTW3::fftw3f.
# FFTW's own CMake package exists only where FFTW was built with CMake; Debian's was not.

find_path(FFTW3_INCLUDE_DIR fftw3.h)
find_library(FFTW3_LIBRARY fftw3)
find_library(FFTW3F_LIBRARY fftw3f)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FFTW3 REQUIRED_VARS FFTW3_LIBRARY FFTW3F_LIBRARY FFTW3_INCLUDE_DIR)
mark_as_advanced(FFTW3_INCLUDE_DIR FFTW3_LIBRARY FFTW3F_LIBRARY)

if(FFTW3_FOUND)
  foreach(precision fftw3 fftw3f)
    if(NOT TARGET FFTW3::${precision})
      string(TOUPPER ${precision} variable)
      add_library(FFTW3::${precision} UNKNOWN IMPORTED)
      set_target_properties(FFTW3::${precision} PROPERTIES
        IMPORTED_LOCATION "${${variable}_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${FFTW3_INCLUDE_DIR}")
    endif()
  endforeach()
endif()
