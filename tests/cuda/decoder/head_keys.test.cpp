// SPDX-License-Identifier: MIT
#include "nprf/cuda/decoder/head_keys.cuh"

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"

/// Each token of a head is a key that has its own weight or in the sums, and exact where it should be.
namespace nprf::test::cuda_decoder_head_keys {

namespace {

constexpr int most_tokens = 14;

struct Key {
  int token, age, is_exact, key;  // key: the token whose key it is; -1 if it is not exact
};

// stores all keys, the numbers of exact keys, and {count, number of exact keys, whether there are sums}
__global__ void kernel(cuda::DecodeStates states, cuda::DecodeBias bias, Key* all, int* exact, int* sizes) {
  cuda::start_kernel();
  const cuda::HeadKeys keys(states, bias, 1, nullptr);
  for (int i = 0; i < keys.count(); ++i)
    all[i] = {static_cast<int>(*keys.value(i)), -static_cast<int>(keys.bias(i)), keys.is_exact(i),
              keys.is_exact(i) ? static_cast<int>(*keys.key(i)) : -1};
  for (int e = 0; e < keys.exact(); ++e) exact[e] = keys.exact(e);
  sizes[0] = keys.count(), sizes[1] = keys.exact(), sizes[2] = keys.has_sums();
}

// an array [2, size]; head 1 has the tokens first..end-1, token j at j mod size
DeviceArray<float> tokens_of(int size, int first, int end) {
  std::vector<float> values(2 * static_cast<std::size_t>(size), -100);
  for (int j = first; j < end; ++j) values[static_cast<std::size_t>(size + j % size)] = static_cast<float>(j);
  return DeviceArray<float>(values);
}

struct Keys {
  std::vector<Key> all;
  std::vector<int> exact;
  bool has_sums;
};

// after `taken_back` further tokens that were taken back
Keys keys_of(int tokens, int taken_back, int near, int sinks, int reach) {
  const int slots = reach + 1, left = std::max(tokens + taken_back - reach, 0);
  const DeviceArray<float> values = tokens_of(slots, left, tokens), keys = tokens_of(slots, left, tokens),
                           sink_keys = tokens_of(sinks, 0, std::min(tokens, sinks)),
                           sink_values = tokens_of(sinks, 0, std::min(tokens, sinks));
  std::vector<double> table;
  for (int age = 0; age <= reach; ++age) table.push_back(-age);
  const DeviceArray<double> biases(table), slopes(std::vector<double>{-1});
  const DeviceArray<int> counts(std::vector<int>{0, tokens}), lefts(std::vector<int>{0, left}),
      state(std::vector<int>{0}), exact(std::size_t{most_tokens}), sizes(std::size_t{3});
  const DeviceArray<Key> all(std::size_t{most_tokens});
  cuda::DecodeStates states{};
  states.slots = slots, states.near = near, states.sinks = sinks, states.r = states.d = states.d_v = 1;
  states.batch = 1, states.heads = 2;
  states.tokens = counts.data(), states.left = lefts.data(), states.state = state.data(), states.values = values.data(),
  states.keys = keys.data();
  states.sink_keys = sink_keys.data(), states.sink_values = sink_values.data();
  cuda::launch("keys of a head", kernel, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr, states,
               cuda::DecodeBias{biases.data(), slopes.data(), 1, reach, true}, all.data(), exact.data(), sizes.data());
  const std::vector<int> size = sizes.fetch();
  Keys result{all.fetch(), exact.fetch(), size[2] != 0};
  result.all.resize(static_cast<std::size_t>(size[0])), result.exact.resize(static_cast<std::size_t>(size[1]));
  return result;
}

}  // namespace

TEST_CASE("the keys of a head", "[cuda]") {
  for (int tokens = 1; tokens <= most_tokens; ++tokens)
    for (const int near : {0, 1, 3, 20})
      for (const int sinks : {0, 2, 20})
        for (const auto& [beyond, taken_back] : {std::pair{0, 0}, {1, 0}, {1, 1}, {4, 0}, {4, 3}}) {
          const int reach = near + beyond;
          INFO(tokens << " tokens, " << taken_back << " taken back, near " << near << ", sinks " << sinks << ", reach "
                      << reach);
          const Keys got = keys_of(tokens, taken_back, near, sinks, reach);
          std::vector<int> times(most_tokens, 0), exact;
          for (std::size_t i = 0; i < got.all.size(); ++i) {
            const Key& key = got.all[i];
            REQUIRE((0 <= key.token && key.token < tokens));
            ++times[static_cast<std::size_t>(key.token)];
            CHECK(key.age == tokens - 1 - key.token);
            const bool is_exact = key.age < near || key.token < sinks;
            CHECK(key.is_exact == is_exact);
            CHECK(key.key == (is_exact ? key.token : -1));
            if (is_exact) exact.push_back(static_cast<int>(i));
          }
          CHECK(got.exact == exact);
          bool has_sums = false;
          for (int j = 0; j < tokens; ++j) {
            const bool is_in_sums = j >= sinks && tokens + taken_back - 1 - j >= reach;
            has_sums = has_sums || is_in_sums;
            CHECK(times[static_cast<std::size_t>(j)] == (is_in_sums ? 0 : 1));
          }
          CHECK(got.has_sums == has_sums);
        }
}

}  // namespace nprf::test::cuda_decoder_head_keys
