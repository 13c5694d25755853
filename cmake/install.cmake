# SPDX-License-Identifier: MIT
#
# find_package(nprf) and pkg-config nprf, from one install.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_DATADIR}/cmake/nprf)

install(TARGETS nprf EXPORT nprfTargets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nprfTargets NAMESPACE nprf:: DESTINATION ${package})

configure_package_config_file(cmake/nprfConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/nprfConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/nprfConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nprfConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/nprfConfigVersion.cmake
  cmake/FindFFTW3.cmake cmake/threads.cmake cmake/cuda.cmake cmake/compiled.cmake cmake/levels.cmake
  DESTINATION ${package})
install(DIRECTORY cmake/instances cmake/levels DESTINATION ${package})

if(NPRF_USE_FFTW)
  set(pkgconfig_requires "eigen3 fftw3 fftw3f")
  set(pkgconfig_use_fftw 1)
else()
  set(pkgconfig_requires "eigen3")
  set(pkgconfig_use_fftw 0)
endif()
configure_file(cmake/nprf.pc.in nprf.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nprf.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
