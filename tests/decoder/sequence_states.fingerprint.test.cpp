// SPDX-License-Identifier: MIT
#include "nprf/decoder/sequence_states.hpp"

#include <sstream>
#include <utility>

#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/position.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_fingerprint {

TEST_CASE("fingerprint: equal for equal models alone", "[decoder]") {
  using T = float;
  struct Case {
    std::uint64_t seed = 1;
    T slope = T(0.1);
    AttentionOptions options{.direction = Direction::causal};
    Index rollback = 2;
  };
  const auto compare = [](const Case& a, const Case& b) {
    const auto print = [](const Case& x) {
      const auto map = orf<T>(5, 9, x.seed);
      const AlibiPosition<T> position(x.slope);
      return Fingerprint<T>(StepModel<T>(FeatureMapView<T>(map), PositionView<T>(position), x.options, x.rollback));
    };
    StateWriter out;
    print(a).save(out);
    std::stringstream stream;
    out.write(stream);
    StateReader in(stream);
    print(b).require_same(in);
    CHECK(in.rest() == 0);
  };
  compare({}, {});
  check_invalid([&] { compare({}, {.seed = 2}); }, {"feature map"});
  check_invalid([&] { compare({}, {.slope = T(0.11)}); }, {"biases"});
  check_invalid([&] { compare({}, {.rollback = 3}); }, {"options"});
  check_invalid([&] { compare({}, {.options = {.direction = Direction::causal, .near = 1}}); }, {"options"});
  check_invalid([&] { compare({}, {.options = {.direction = Direction::causal, .sinks = 1}}); }, {"options"});
  check_invalid(
      [&] { compare({}, {.options = {.direction = Direction::causal, .normalization = Normalization::unit(2)}}); },
      {"options"});
}

TEST_CASE("fingerprint: a map with two features exchanged is another one", "[decoder]") {
  const Matrix<float> rows = normal<float>(3, 5, 1);
  const auto print = [](const Matrix<float>& of) {
    const PositiveFeatures<float> map(of);
    const NoPosition<float> position;
    return Fingerprint<float>(StepModel<float>(FeatureMapView<float>(map), PositionView<float>(position),
                                               {.direction = Direction::causal}, 0));
  };
  StateWriter out;
  print(rows).save(out);
  for (const auto& [k, l] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
    Matrix<float> exchanged = rows;
    exchanged.row(k).swap(exchanged.row(l));
    std::stringstream stream;
    out.write(stream);
    StateReader in(stream);
    check_invalid([&] { print(exchanged).require_same(in); }, {"feature map"});
  }
}

}  // namespace nprf::test::decoder_fingerprint
