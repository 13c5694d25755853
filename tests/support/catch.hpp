// SPDX-License-Identifier: MIT
#pragma once

// the headers of Catch2 2 and 3 have different names
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include "support/sanitized.hpp"

// the scalars of a templated test; only one under sanitizers, to save time
#if NPRF_TEST_SANITIZED
#define NPRF_TEST_SCALARS float
#else
#define NPRF_TEST_SCALARS float, double
#endif
