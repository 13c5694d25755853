// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/nprf.hpp"
#include "nprf/reference/softmax_attention.hpp"

using namespace nprf;

AlibiPosition<int> alibi(1);                                                    // refused
GridPosition<int> grid(1, 1, Matrix<int>(1, 1));                                // refused
NoPosition<long double> none;                                                   // refused
RelativePosition<int> relative(Vector<int>{{1, 2, 1}});                         // refused
const auto t5 = t5_position<int>(Vector<int>(32), Direction::causal);           // refused
const auto resized = resize_bias(Vector<int>{{1, 2, 1}}, 5);                    // refused
EluFeatures<int> elu(4);                                                        // refused
HyperbolicFeatures<int> hyperbolic({.input_dim = 4, .num_features = 8});        // refused
PositiveFeatures<int> positive({.input_dim = 4, .num_features = 8});            // refused
TrigonometricFeatures<int> trigonometric({.input_dim = 4, .num_features = 8});  // refused
const auto paper_name = orf<int>(4, 8);                                         // refused
Saved<int> saved;                                                               // refused
void reset(Decoder<int>& decoder);                                              // refused
const Matrix<int> x;
const NoPosition<float> fine;
const auto y = reference::softmax_attention<int>(x, x, x, fine, Direction::causal, Normalization::none());  // refused
