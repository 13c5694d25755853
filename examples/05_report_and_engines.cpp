// SPDX-License-Identifier: MIT

// One formula, several engines. They agree up to rounding; Engine::automatic, the default, chooses the cheapest. A
// Report has the engine that ran, its memory, and the numbers of rows that were recomputed or attend to no key.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

int main() {
  const Index n = 1200, d = 32;
  const Matrix<float> q = Matrix<float>::Random(n, d), k = Matrix<float>::Random(n, d), v = Matrix<float>::Random(n, d);

  const auto run = [&](Engine engine, Report& report) {
    const Attention attention(orf<float>(d, 16), AlibiPosition<float>(0.01f), {.engine = engine});
    const Matrix<float> y = attention(q, k, v, {.report = &report});
    std::printf("%-9s ran %-6s in %5.2f MiB: %d rows recomputed, %d empty\n", name(engine).data(),
                name(report.engine).data(), static_cast<double>(report.workspace_bytes) / (1 << 20),
                static_cast<int>(report.repaired_rows), static_cast<int>(report.empty_rows));
    return y;
  };

  Report report;
  const Matrix<float> direct = run(Engine::direct, report);
  const Matrix<float> automatic = run(Engine::automatic, report);
  float apart = (automatic - direct).norm() / direct.norm();
#if NPRF_USE_FFTW
  apart = std::max(apart, (run(Engine::fftw, report) - direct).norm() / direct.norm());
#endif
  std::printf("largest difference between them: %.1g\n", apart);

  // a window of one key to either side, moved beyond the last key: 3 of 4 queries attend to no key; their rows are zero
  const Vector<float> window{{-INFINITY, 0, 0, 0, -INFINITY}};
  const Attention local(orf<float>(d, 16), RelativePosition<float>(window));
  const Matrix<float> y = local(q.topRows(4), k, v, {.offset = n, .report = &report});
  std::printf("queries beyond the window: %d rows empty\n", static_cast<int>(report.empty_rows));

  return apart < 1e-4f && report.empty_rows == 3 && y.bottomRows(3).isZero(0) ? 0 : 1;
}
