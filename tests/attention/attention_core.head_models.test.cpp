// SPDX-License-Identifier: MIT
#include "nprf/attention/attention_core.hpp"

#include <span>
#include <vector>

#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_batch_head_models {

TEST_CASE("heads share one feature map and one position, or each has its own", "[attention]") {
  const AttentionOptions options{.direction = Direction::causal};
  for (const std::size_t maps : {std::size_t{1}, std::size_t{3}})
    for (const std::size_t positions : {std::size_t{1}, std::size_t{3}}) {
      std::vector<PositiveFeatures<double>> f;
      for (std::size_t h = 0; h < maps; ++h) f.push_back(orf<double>(2, 4, h));
      std::vector<RelativePosition<double>> p;
      for (std::size_t h = 0; h < positions; ++h) p.emplace_back(normal_vector<double>(3, h));
      const HeadModels<double> heads(std::span<const PositiveFeatures<double>>(f),
                                     std::span<const RelativePosition<double>>(p), options);
      CHECK(&heads.options() == &options);
      CHECK(heads.num_positions() == positions);
      const Matrix<double> x = normal<double>(5, 2, 9);
      Workspace workspace;
      for (const Index h : {0, 1, 2}) {
        const auto own = static_cast<std::size_t>(h);
        Matrix<double> phi(5, 4);
        heads.feature_map(h).queries(x, {}, phi, Team(workspace));
        CHECK(same_bits(phi, f[maps == 1 ? 0 : own].queries(x)));
        CHECK(heads.position_of(h) == (positions == 1 ? 0 : own));
        CHECK(&heads.position(heads.position_of(h)).bias() == &p[positions == 1 ? 0 : own].bias());
      }
    }
}

}  // namespace nprf::test::attention_batch_head_models
