// SPDX-License-Identifier: MIT
#pragma once

// Catch2 2 and 3 name their headers differently
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include "support/sanitized.hpp"

// The scalars of a templated test: one has to do for sanitizers.
#if NPRF_TEST_SANITIZED
#define NPRF_TEST_SCALARS float
#else
#define NPRF_TEST_SCALARS float, double
#endif
