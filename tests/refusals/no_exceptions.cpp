// SPDX-License-Identifier: MIT
// expected: nprf reports errors by exceptions: compile without -fno-exceptions
// flags: -fno-exceptions
#include "nprf/config.hpp"
