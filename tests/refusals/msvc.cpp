// SPDX-License-Identifier: MIT
// expected: nprf does not serve MSVC
#undef __clang__
#define _MSC_VER 1944
#include "nprf/config.hpp"
