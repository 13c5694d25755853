// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/attention_mask.cuh"

#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_position_sinks {

TEST_CASE("the sinks of a sequence are its first keys that are not padding", "[cuda]") {
  constexpr int n_k = 70, sequences = 40;  // more than a block of threads
  std::vector<unsigned char> mask(std::size_t{sequences} * n_k);
  for (std::size_t at = 0; at < mask.size(); ++at) {
    const std::size_t sequence = at / n_k, j = at % n_k;
    mask[at] = j >= 2 * sequence && j % 3 != 1;  // sequences of padding alone from 35 on
  }
  const DeviceArray<unsigned char> on_device(mask);
  for (const int count : {0, 1, 4, 65, n_k})
    for (const bool masked : {false, true}) {
      const DeviceArray<int2> ranges(sequences);
      cuda::queue_sinks(
          {masked ? reinterpret_cast<const bool*>(on_device.data()) : nullptr, sequences, n_k, count, ranges.data()},
          nullptr);
      const std::vector<int2> got = ranges.fetch();
      for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
        const auto [first, end] = got[sequence];
        INFO("count " << count << ", sequence " << sequence << ", first " << first << ", end " << end);
        REQUIRE((first >= 0 && first <= end && end <= n_k));
        int before = 0, within = 0, all = 0;
        for (int j = 0; j < n_k; ++j) {
          const bool is_key = !masked || mask[sequence * n_k + static_cast<std::size_t>(j)] != 0;
          all += is_key, before += is_key && j < first, within += is_key && j >= first && j < end;
          if (j == first && first < end) CHECK(is_key);
        }
        CHECK(before == 0);
        CHECK(within == (all < count ? all : count));
      }
    }
}

}  // namespace nprf::test::cuda_position_sinks
