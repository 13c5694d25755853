// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/recompute_tiled.cuh"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_attention_recompute_tiled {

TEST_CASE("recomputed rows are exact, and no other rows are written", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  using Case = TileCase<float, float>;
  const Case x{.batch = 2,
               .heads = 2,
               .n_q = 150,
               .n_k = 200,
               .r = 5,
               .p = 66,
               .weights = {0, 0.5f, 2},
               .last_attended = 20,
               .masked = true};
  const auto data = x.data();
  const Matrix<double> expected = x.expected(data);
  const int z = x.z(), n_q = x.n_q, n_k = x.n_k, p = x.p;
  const DeviceArray<float> A(x.features(data.A, n_q)), B(x.features(data.B, n_k)), V(stored<float>(data.V)),
      c(stored<float>(data.c));
  const DeviceArray<unsigned char> mask(data.mask);

  // per matrix: no row, one row, more than a tile, all rows; in random order
  const std::vector<int> sizes{0, 1, 70, n_q};
  std::vector<int> rows(static_cast<std::size_t>(z * n_q));
  for (int s = 0; s < z; ++s) {
    const auto begin = rows.begin() + s * n_q;
    std::iota(begin, begin + n_q, 0);
    std::shuffle(begin, begin + n_q, std::mt19937(7));
  }
  const DeviceArray<int> on_device(rows), counts(sizes);
  const cuda::TileTask<float> task{
      x.operand(A.data(), n_q), x.operand(B.data(), n_k),
      cuda::Columns<float>{cuda::DeviceMatrixView<const float>(V.data(), x.batch, x.heads, n_k, p),
                           reinterpret_cast<const bool*>(mask.data())},
      cuda::DeviceWeights{c.data(), x.lags(), x.lags(), 1 - n_q, 1, 1 - n_q, x.last_attended}};
  for (const int parts : {1, 3})
    for (const int blocks : {1, 1000}) {  // few blocks, each with several tiles, or one block per tile
      const auto poisoned = [&](int count) {
        return DeviceArray<float>(std::vector<float>(static_cast<std::size_t>(count), nan));
      };
      const DeviceArray<float> N = poisoned(z * n_q * p), D = poisoned(z * n_q),
                               N_extra = poisoned((parts - 1) * z * n_q * p), D_extra = poisoned((parts - 1) * z * n_q);
      cuda::queue_recompute_tiled<float>(
          {task, {on_device.data(), counts.data(), n_q}, parts, N.data(), D.data(), N_extra.data(), D_extra.data()}, z,
          blocks, nullptr);
      Matrix<float> Y(z * n_q, p + 1), extra((parts - 1) * z * n_q, p + 1);
      Y << as_floats(N.fetch(), z * n_q, p), as_floats(D.fetch(), z * n_q, 1);
      if (parts > 1) extra << as_floats(N_extra.fetch(), extra.rows(), p), as_floats(D_extra.fetch(), extra.rows(), 1);
      for (int part = 0; part < parts - 1; ++part) Y += extra.middleRows(part * z * n_q, z * n_q);
      for (int at = 0; at < z * n_q; ++at) {
        const int s = at / n_q, row = s * n_q + rows[static_cast<std::size_t>(at)];
        INFO("z " << s << ", row " << row - s * n_q << ", " << parts << " parts, " << blocks << " blocks");
        if (at % n_q < sizes[static_cast<std::size_t>(s)])
          CHECK(Y.row(row).cast<double>() == expected.row(row));
        else
          CHECK(Y.row(row).array().isNaN().all());
      }
    }
}

}  // namespace nprf::test::cuda_attention_recompute_tiled
