// SPDX-License-Identifier: MIT
#pragma once

// Catch2 2 and 3 name their headers differently
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

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

// The scalars of a templated test. Sanitizers look for other faults than lost digits, and cost the most time: one
// scalar has to do for them.
#if NPRF_TEST_SANITIZED
#define NPRF_TEST_SCALARS float
#else
#define NPRF_TEST_SCALARS float, double
#endif
