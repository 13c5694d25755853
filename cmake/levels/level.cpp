// SPDX-License-Identifier: MIT
//
// The table of one level, NPRF_LEVEL. It is the only global symbol of the level's object, and constant: no code of the
// level runs before it is chosen.

#define NPRF_IMPLEMENT 0
#include "level.hpp"

#include "nprf/implementation.hpp"

extern "C" {
[[gnu::visibility("hidden")]] extern constinit const nprf::Level NPRF_LEVEL = nprf::Level::compiled();
}
