// SPDX-License-Identifier: MIT
#pragma once

/// 1 under AddressSanitizer and ThreadSanitizer. Tests run fewer cases there: sanitizers are slow and do not look for
/// rounding errors. Tests of the CUDA headers do so too if NPRF_TEST_FEW_CASES is defined as 1, as it is for
/// interpreted kernels.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NPRF_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NPRF_TEST_SANITIZED 1
#endif
#endif
#ifndef NPRF_TEST_SANITIZED
#define NPRF_TEST_SANITIZED 0
#endif
#ifndef NPRF_TEST_FEW_CASES
#define NPRF_TEST_FEW_CASES NPRF_TEST_SANITIZED
#endif
