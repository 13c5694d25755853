// SPDX-License-Identifier: MIT
#pragma once

/// 1 under AddressSanitizer, which looks for other faults than lost digits, and costs the most time.
#if defined(__SANITIZE_ADDRESS__)
#define NPRF_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NPRF_TEST_SANITIZED 1
#endif
#endif
#ifndef NPRF_TEST_SANITIZED
#define NPRF_TEST_SANITIZED 0
#endif
