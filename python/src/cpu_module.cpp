// SPDX-License-Identifier: MIT
//
// nprf._cpu: the x86-64 level of this processor. Compiled for any processor.

#include <nanobind/nanobind.h>

#include "processor_level.h"

NB_MODULE(_cpu, m) { m.attr("level") = nprf_processor_level(); }
