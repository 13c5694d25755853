// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/engines.hpp"

#include <concepts>
#include <string>
#include <type_traits>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::toeplitz_engines {

namespace {

constexpr int num_names = static_cast<int>(Engine::smooth) + 1;

}  // namespace

TEST_CASE("each name but automatic is that of one engine of the build", "[toeplitz]") {
  for (int k = 0; k < num_names; ++k) {
    const auto engine = static_cast<Engine>(k);
    INFO(std::string(name(engine)));
    int found = 0;
    const bool is_found = toeplitz::with_engine<double>(engine, [&](auto) { ++found; });
    const bool expected = engine != Engine::automatic && (NPRF_USE_FFTW || engine != Engine::fftw);
    CHECK(found == (expected ? 1 : 0));
    CHECK(is_found == expected);
  }
}

TEST_CASE("the class of a name, and its properties", "[toeplitz]") {
  bool is_direct = false;
  toeplitz::with_engine<float>(Engine::direct, [&]<class E>(std::type_identity<E>) {
    is_direct = std::same_as<E, toeplitz::DirectEngine<float>>;
  });
  CHECK(is_direct);
  // as in engine.hpp: what the rounding errors of a row are relative to
  CHECK(toeplitz::properties_of(Engine::direct).rounding == toeplitz::Rounding::per_row);
  CHECK(toeplitz::properties_of(Engine::banded).rounding == toeplitz::Rounding::per_row);
  CHECK(toeplitz::properties_of(Engine::block_causal).rounding == toeplitz::Rounding::per_block);
  CHECK(toeplitz::properties_of(Engine::lanes).rounding == toeplitz::Rounding::global);
  CHECK(toeplitz::properties_of(Engine::block_causal).accepts_key_log_scales);
  CHECK_FALSE(toeplitz::properties_of(Engine::lanes).accepts_key_log_scales);
}

TEST_CASE("an engine that the build does not have is refused", "[toeplitz]") {
  for (int k = 0; k < num_names; ++k) {
    const auto engine = static_cast<Engine>(k);
    if (NPRF_USE_FFTW || engine != Engine::fftw)
      CHECK_NOTHROW(toeplitz::require_available(engine));
    else
      check_invalid([&] { toeplitz::require_available(engine); }, {"fftw", "NPRF_USE_FFTW=1"});
  }
  check_invalid([] { toeplitz::require_available(static_cast<Engine>(num_names)); }, {"engine", "number"});
}

}  // namespace nprf::test::toeplitz_engines
