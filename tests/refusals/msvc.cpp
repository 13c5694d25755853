// SPDX-License-Identifier: MIT
// expected: nprf does not support MSVC
#undef __clang__
#define _MSC_VER 1944
#include "nprf/config.hpp"
