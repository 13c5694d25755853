# SPDX-License-Identifier: MIT
#
# Sets nprf_threads to what runs the threads: OpenMP where the compiler has it, else std::thread. The compiler is the
# user's, so that an installed nprf decides this anew.

if(NPRF_USE_OPENMP)
  find_package(OpenMP QUIET COMPONENTS CXX)
endif()
if(NPRF_USE_OPENMP AND OpenMP_CXX_FOUND)
  set(nprf_threads OpenMP::OpenMP_CXX)
else()
  find_package(Threads REQUIRED)
  set(nprf_threads Threads::Threads)
endif()
