// SPDX-License-Identifier: MIT
#include "nprf/decoder/fingerprint.hpp"

#include <sstream>

#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "support/catch.hpp"
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

}  // namespace nprf::test::decoder_fingerprint
