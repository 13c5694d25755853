// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"

#include <limits>
#include <vector>

#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_backward_selected_queries {

TEST_CASE("tiles of queries are added where some are drowned, and no others", "[cuda]") {
  constexpr int n = 200, tile = cuda::TileShape::tile;
  const std::vector<std::vector<int>> all_drowned{{}, {0}, {63}, {64, 190}, {n - 1}};  // of each matrix
  TileCase<float, float> x{.heads = 5, .n_q = 70, .n_k = n, .p = 9, .weights = {0, 0.5f, 1, 2}};
  for (const int last_attended : {n - 1, -3}) {
    x.last_attended = last_attended;
    auto data = x.data();
    std::vector<unsigned char> again(static_cast<std::size_t>(x.z() * n), 0);
    std::vector<int> sizes;
    for (int z = 0; z < x.z(); ++z) {
      const std::vector<int>& drowned = all_drowned[static_cast<std::size_t>(z)];
      for (const int i : drowned) again[static_cast<std::size_t>(z * n + i)] = 1;
      sizes.push_back(static_cast<int>(drowned.size()));
    }
    for (int i = 0; i < x.z() * n; ++i)
      if (!again[static_cast<std::size_t>(i)]) data.B.row(i).setZero();
    const Matrix<double> expected = x.expected(data);
    for (int z = 0; z < x.z(); ++z)
      for (int i = 0; i < n; ++i) {
        bool some = false;
        for (const int other : all_drowned[static_cast<std::size_t>(z)]) some |= other / tile == i / tile;
        if (!some) data.V.row(z * n + i).setConstant(std::numeric_limits<float>::quiet_NaN());
      }
    const DeviceArray<unsigned char> flags(again);
    const DeviceArray<int> counts(sizes);
    for (const int parts : {1, 3})
      CHECK(x.result_of(data, parts, [&](const cuda::TileTask<float>& task, float* N, float* D) {
        const cuda::DrownedQueries queries{reinterpret_cast<const bool*>(flags.data()), counts.data()};
        cuda::queue_drowned({task, queries, parts, N, D}, x.z(), nullptr);
      }) == expected);
  }
}

}  // namespace nprf::test::cuda_toeplitz_backward_selected_queries
