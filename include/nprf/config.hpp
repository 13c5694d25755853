// SPDX-License-Identifier: MIT
#pragma once

/// Version and build switches. Every header of nprf may include this one; this one includes nothing.

#if defined(_MSC_VER) && !defined(__clang__)
#error "nprf does not support MSVC: compile with g++ 12, clang 16 or newer"
#elif __cplusplus < 202002L
#error "nprf needs C++20: compile with -std=c++20"
#include <nprf_needs_c++20>  // there is no such file, so the compiler stops here
#endif

#define NPRF_VERSION_MAJOR 0
#define NPRF_VERSION_MINOR 1
#define NPRF_VERSION_PATCH 0

/// 1: Engine::fftw is compiled, and the program must link FFTW 3 (fftw3 and fftw3f). 0: no header of FFTW is included.
/// All translation units of a program must use the same value.
#ifndef NPRF_USE_FFTW
#define NPRF_USE_FFTW 0
#endif

/// 1: nprf runs its threads with OpenMP. 0: with std::thread. All translation units of a program must use the same
/// value.
#ifndef NPRF_USE_OPENMP
#ifdef _OPENMP
#define NPRF_USE_OPENMP 1
#else
#define NPRF_USE_OPENMP 0
#endif
#endif

/// 1: the program links nprf::levels, whose code is compiled for several levels of x86-64 (levels.hpp).
#ifndef NPRF_X86_64_LEVELS
#define NPRF_X86_64_LEVELS 0
#endif

/// 1: nprf's headers only declare the code that is slow to compile, and one file of the program must include
/// nprf/implementation.hpp. 0: every file compiles the code that it calls. All translation units of a program must use
/// the same value.
#ifndef NPRF_SEPARATE
#define NPRF_SEPARATE NPRF_X86_64_LEVELS
#endif

/// 1: the plans for GPUs are declared extern; one file of the program must instantiate them (cuda/instances.cuh).
#ifndef NPRF_CUDA_EXTERN_INSTANCES
#define NPRF_CUDA_EXTERN_INSTANCES 0
#endif

/// 0: plans for GPUs have no gradients (PlanOptions::gradients throws), and a program compiles without the kernels of
/// their backward pass. All translation units that compile plans must use the same value.
#ifndef NPRF_CUDA_GRADIENTS
#define NPRF_CUDA_GRADIENTS 1
#endif

/// 1: AddressSanitizer reports accesses to scratch memory that is not taken (core/workspace.hpp). All translation units
/// of a program must use the same value, and be compiled with -fsanitize=address.
#ifndef NPRF_CHECK_SCRATCH_MEMORY
#define NPRF_CHECK_SCRATCH_MEMORY 0
#endif

#ifndef __cpp_exceptions
#error "nprf reports errors by exceptions: compile without -fno-exceptions"
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "nprf needs infinities and exact rounding: compile without -ffast-math and -ffinite-math-only"
#endif

/// States that the iterations of the next loop access disjoint memory, so that the compiler vectorises it without
/// checks for overlap.
#if defined(__GNUC__) && !defined(__clang__)
#define NPRF_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define NPRF_INDEPENDENT_ITERATIONS
#endif

/// Marks functions that run on the host and, where a CUDA compiler reads them, on the device.
#ifdef __CUDACC__
#define NPRF_HOST_DEVICE __host__ __device__
#else
#define NPRF_HOST_DEVICE
#endif

/// Marks small functions on vector registers, which must be inlined so that their arguments stay in registers.
#define NPRF_ALWAYS_INLINE [[gnu::always_inline]] inline

/// Unrolls the next loop, which must have at most 8 iterations, so that an array of vector registers stays in
/// registers. Below -O3 compilers unroll loops only by request.
#ifdef __clang__
#define NPRF_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)  // code of the host, for which nvcc knows no such request
#define NPRF_UNROLL
#else
#define NPRF_UNROLL _Pragma("GCC unroll 8")
#endif
