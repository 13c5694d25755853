// SPDX-License-Identifier: MIT
//
// lanes_avx2 OUT.json: the row of `targets` for processors without AVX-512. Compiled with -march=x86-64-v3.

#include <cstdlib>
#include <iostream>

#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"
#include "bench/toeplitz/fftw/bare_fftw.hpp"

int main(int argc, char** argv) {
  using namespace nprf;
  using namespace nprf::bench;
  if (argc != 2) {
    std::cerr << "usage: lanes_avx2 OUT.json\n";
    return EXIT_FAILURE;
  }
  try {
    constexpr Index n = 8192, m = 32;
    const Problem& p = problem(n);
    const auto attention = make_attention(p.position, m, Engine::lanes);
    const BareFftw pairs(n, m, head_dim);
    const Race race({[&] { keep(attention(p.q, p.k, p.v)); }, [&] { pairs(); }}, {.budget = 2});
    write_json(argv[1], {{"rows", to_json(std::vector{Row{.ours = "lanes, dense, AVX2 build",
                                                          .rival = "bare FFTW",
                                                          .n = n,
                                                          .m = m,
                                                          .ours_ms = 1e3 * race.seconds(0),
                                                          .rival_ms = 1e3 * race.seconds(1),
                                                          .ratio = race.ratio(0, 1),
                                                          .at_most = 0.55,
                                                          .stretch = 0.45}})}});
  } catch (const std::exception& error) {
    std::cerr << "lanes_avx2: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
