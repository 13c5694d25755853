// SPDX-License-Identifier: MIT
#include "makers.cuh"

nprf::python::Makers nprf::python::makers_float16() { return makers<__half>(); }
