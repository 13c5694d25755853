// SPDX-License-Identifier: MIT
// expected: nprf says by exceptions what it refuses: compile without -fno-exceptions
// flags: -fno-exceptions
#include "nprf/config.hpp"
