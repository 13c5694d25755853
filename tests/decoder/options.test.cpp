// SPDX-License-Identifier: MIT
#include "nprf/decoder/options.hpp"

#include "support/throws.hpp"

namespace nprf::test::decoder_options {

TEST_CASE("decoder options: what they may be", "[decoder]") {
  const AttentionOptions causal{.direction = Direction::causal};
  const auto refused = [&](const DecoderOptions& options, std::initializer_list<std::string_view> pieces,
                           const AttentionOptions& attention) {
    check_invalid([&] { options.checked(attention); }, pieces);
  };
  refused({}, {"attention", "Direction::causal", "bidirectional"}, {});
  refused({.batch = 0}, {"batch", "at least 1", "got 0"}, causal);
  refused({.rollback = -1}, {"rollback", "got -1"}, causal);
  refused({.rollback = Index{1} << 30}, {"rollback", "expected 0 to 16777216"}, causal);
  refused({.most_tokens = -1}, {"most_tokens", "got -1"}, causal);
  const DecoderOptions most{.rollback = Index{1} << 24, .most_tokens = 1};
  CHECK(&most.checked(causal) == &most);
}

}  // namespace nprf::test::decoder_options
