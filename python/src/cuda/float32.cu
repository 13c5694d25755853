// SPDX-License-Identifier: MIT
#include "makers.cuh"

nprf::python::Makers nprf::python::makers_float32() { return makers<float>(); }
