// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"

#include <limits>
#include <vector>

#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_backward_selected_queries {

TEST_CASE("only tiles with a selected query contribute", "[cuda]") {
  constexpr int n = 200, tile = cuda::TileShape::tile;
  const std::vector<std::vector<int>> all_selected{{}, {0}, {63}, {64, 190}, {n - 1}};  // of each matrix
  TileCase<float, float> x{.heads = 5, .n_q = 70, .n_k = n, .p = 9, .weights = {0, 0.5f, 1, 2}};
  for (const int last_attended : {n - 1, -3}) {
    x.last_attended = last_attended;
    auto data = x.data();
    std::vector<unsigned char> is_selected(static_cast<std::size_t>(x.z() * n), 0);
    for (int z = 0; z < x.z(); ++z) {
      const std::vector<int>& selected = all_selected[static_cast<std::size_t>(z)];
      for (const int i : selected) is_selected[static_cast<std::size_t>(z * n + i)] = 1;
    }
    for (int i = 0; i < x.z() * n; ++i)
      if (!is_selected[static_cast<std::size_t>(i)]) data.B.row(i).setZero();
    const Matrix<double> expected = x.expected(data);
    for (int z = 0; z < x.z(); ++z)
      for (int i = 0; i < n; ++i) {
        bool has_selected = false;
        for (const int other : all_selected[static_cast<std::size_t>(z)]) has_selected |= other / tile == i / tile;
        if (!has_selected) data.V.row(z * n + i).setConstant(std::numeric_limits<float>::quiet_NaN());
      }
    const DeviceArray<unsigned char> device_flags(is_selected);
    cuda::Scratch count;
    cuda::SelectedQueries::take(count, nullptr, x.z(), n);
    const DeviceArray<unsigned char> memory(count.bytes());
    cuda::Scratch scratch(memory.data());
    const auto queries =
        cuda::SelectedQueries::take(scratch, reinterpret_cast<const bool*>(device_flags.data()), x.z(), n);
    cuda::queue_selected_tiles(queries, n, x.z(), nullptr);
    for (const int parts : {1, 3})
      CHECK(x.result_of(data, parts, [&](const cuda::TileTask<float>& task, float* N, float* D) {
        cuda::queue_selected_queries({task, queries, parts, N, D}, x.z(), nullptr);
      }) == expected);
  }
}

}  // namespace nprf::test::cuda_toeplitz_backward_selected_queries
