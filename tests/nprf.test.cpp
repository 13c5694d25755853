// SPDX-License-Identifier: MIT
#include "nprf/nprf.hpp"

#include <stdexcept>
#include <type_traits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::nprf_hpp {

// uses each public name
TEST_CASE("the umbrella header declares every public name", "[umbrella]") {
  static_assert(FeatureMap<PositiveFeatures<float>> && FeatureMap<TrigonometricFeatures<double>>);
  static_assert(FeatureMap<HyperbolicFeatures<float>> && FeatureMap<EluFeatures<double>>);
  static_assert(Position<NoPosition<float>> && Position<RelativePosition<double>>);
  static_assert(Position<AlibiPosition<float>> && Position<T5Position<double>>);
  static_assert(std::is_base_of_v<std::invalid_argument, InvalidArgument>);
  static_assert(std::is_base_of_v<std::runtime_error, BackendError>);

  const Index n = 20, d = 4;
  const auto q = normal<float>(n, d, 1), k = normal<float>(n, d, 2), v = normal<float>(n, 3, 3);
  for (const auto& map : {prf<float>(d, 8, 1), orf<float>(d, 8, 1), sphere_prf<float>(d, 8, 1)}) {
    const Attention attention(map, t5_position<float>(normal_vector<float>(32, 4), Direction::bidirectional));
    const Matrix<float> y = attention(q, k, v), twin = reference::kernelized_attention(attention, q, k, v);
    // 20 tokens of N(0,1) values, so rounding errors are some ten epsilon
    CHECK(worst_ratio(y, twin, 100 * epsilon<float>) <= 1);
    // an average of values is not larger than the largest value
    CHECK(y.cwiseAbs().maxCoeff() <= v.cwiseAbs().maxCoeff() * 1.0001f);
  }
  const Matrix<float> exact = reference::softmax_attention<float>(q, k, v, AlibiPosition<float>(0.5f),
                                                                  Direction::causal, Normalization::none());
  CHECK(worst_ratio(exact.row(0), v.row(0), 4 * epsilon<float>) <= 1);  // the first token attends only to itself
  const LagWeights<float> one{0, Vector<float>::Ones(1)};
  CHECK(toeplitz::contract<float>(Engine::automatic, one, q, k, v).rows() == n);
}

}  // namespace nprf::test::nprf_hpp
