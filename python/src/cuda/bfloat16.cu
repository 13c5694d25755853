// SPDX-License-Identifier: MIT
#include "makers.cuh"

nprf::python::Makers nprf::python::makers_bfloat16() { return makers<__nv_bfloat16>(); }
