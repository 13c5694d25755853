/* SPDX-License-Identifier: MIT */
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The x86-64 level of this processor, 1 to 4; 0 on other architectures. */
static long nprf_processor_level(void) {
#if defined(__x86_64__)
  unsigned a, b, c = 0, d, extended = 0;
  __builtin_cpu_init();
  __get_cpuid(1, &a, &b, &c, &d);
  __get_cpuid(0x80000001, &a, &b, &extended, &d);
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt") || !__builtin_cpu_supports("ssse3"))
    return 1;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2") || !(c & bit_F16C) || !(c & bit_MOVBE) || !(extended & bit_LZCNT))
    return 2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return 3;
  return 4;
#else
  return 0;
#endif
}
