// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar type of its feature map
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

void matrices(const Attention<EluFeatures<float>, NoPosition<float>>& attention, const Matrix<float>& x,
              const Matrix<double>& other, Saved<float>& saved) {
  attention(other, other, other);         // refused
  attention.forward(x, x, other, saved);  // refused
}

// each call with other types than the rest, since the compiler reports the same types once
void views(const MultiHeadAttention<EluFeatures<float>, NoPosition<float>>& attention, HeadsView<float> x,
           HeadsView<double> other, HeadsView<const double> constant, Saved<float>& saved, Decoder<float>& decoder) {
  attention(x, x, x, other);                    // refused
  attention.forward(x, x, constant, x, saved);  // refused
  decoder.step(other, x, x, x);                 // refused
}
