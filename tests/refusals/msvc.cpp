// SPDX-License-Identifier: MIT
// expected: nprf does not support MSVC
// flags: -U__clang__ -D_MSC_VER=1944
#include "nprf/config.hpp"
