// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/attention_mask.cuh"

#include <algorithm>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_position_present_keys {

TEST_CASE("keys are present up to the length of their sequence, without those that the mask excludes", "[cuda]") {
  constexpr int n_k = 300;
  const std::vector<int> lengths{n_k, 7, 0, -5, n_k + 1000, 1};
  std::vector<unsigned char> mask(lengths.size() * n_k);
  for (std::size_t at = 0; at < mask.size(); ++at) mask[at] = at % 3 != 0;
  const DeviceArray<int> of_lengths(lengths);
  const DeviceArray<unsigned char> of_mask(mask);
  const bool masked = GENERATE(false, true);
  for (const int sequences : {0, 1, static_cast<int>(lengths.size())}) {
    const DeviceArray<unsigned char> present(std::vector<unsigned char>(mask.size() + 1, 7));
    cuda::queue_present_keys({masked ? reinterpret_cast<const bool*>(of_mask.data()) : nullptr, of_lengths.data(),
                              sequences, n_k, reinterpret_cast<bool*>(present.data())},
                             nullptr);
    std::vector<unsigned char> expected(mask.size() + 1, 7);
    for (int b = 0; b < sequences; ++b)
      for (int j = 0; j < n_k; ++j) {
        const auto at = static_cast<std::size_t>(b * n_k + j);
        expected[at] = j < lengths[static_cast<std::size_t>(b)] && (!masked || mask[at] != 0);
      }
    CHECK(present.fetch() == expected);
  }
}

}  // namespace nprf::test::cuda_position_present_keys
