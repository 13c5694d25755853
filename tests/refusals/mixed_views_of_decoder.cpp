// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar type of its feature map
#include "nprf/decoder/decoder.hpp"

using namespace nprf;

void call(Decoder<float>& decoder, HeadsView<float> x, HeadsView<double> y) { decoder.step(x, x, x, y); }
