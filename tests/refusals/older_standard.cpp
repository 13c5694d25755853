// SPDX-License-Identifier: MIT
// flags: -std=c++17
// expected: nprf needs C++20: compile with -std=c++20
#include "nprf/nprf.hpp"
