// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/decoder/decoder.hpp"

void call(nprf::Decoder<int>& decoder) { decoder.reset(); }
