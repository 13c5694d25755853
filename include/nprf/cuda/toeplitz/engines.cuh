// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "nprf/core/error.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/banded/engine.cuh"
#include "nprf/cuda/toeplitz/direct/engine.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/fft/cufft_engine.cuh"
#include "nprf/cuda/toeplitz/fft/fused_engine.cuh"
#include "nprf/cuda/toeplitz/smooth/engine.cuh"

namespace nprf::cuda {

namespace detail {

template <Storage S, class... E>
struct EngineTypes {
  static_assert((ToeplitzEngine<E, TileTask<S>> && ...),
                "nprf: an engine must model nprf::cuda::ToeplitzEngine (engine.cuh)");

  /// One of the engines, and the scratch memory (Arrays) of one engine.
  using Variant = std::variant<E...>;
  using Arrays = std::variant<typename E::Arrays...>;

  /// Calls use(std::type_identity<E>()) for each engine type E.
  template <class Use>
  static constexpr void for_each(Use&& use) {
    (use(std::type_identity<E>()), ...);
  }
};

}  // namespace detail

/// The engines. Of several that cost the same, Engine::automatic chooses the first.
template <Storage S>
using EngineList = detail::EngineTypes<S, BandedEngine<S>, DirectEngine<S>, FusedEngine, CufftEngine, SmoothEngine<S>>;

/// Properties of an engine (engine.cuh).
struct EngineProperties {
  bool is_tiled = false, supports_grid = false, has_states = false;
};

constexpr EngineProperties properties_of(Engine engine) {
  EngineProperties found;
  EngineList<float>::for_each([&]<class E>(std::type_identity<E>) {
    if (E::name == engine) found = {E::is_tiled, E::supports_grid, E::has_states};
  });
  return found;
}

/// Constructs the engine whose name is `engine`. Throws InvalidArgument if there is no such engine, or if it does not
/// support the shape.
template <Storage S>
typename EngineList<S>::Variant make_engine(Engine engine, const EngineInputs& x) {
  using List = EngineList<S>;
  const bool is_grid = x.weights.c.places.is_grid();
  std::optional<typename List::Variant> made;
  std::string of_grids;
  List::for_each([&]<class E>(std::type_identity<E>) {
    if (E::name == engine && (E::supports_grid || !is_grid)) made.emplace(std::in_place_type<E>, x);
    if (E::supports_grid) of_grids.append(of_grids.empty() ? "" : " or ").append(name(E::name));
  });
  require(name(engine) != "unknown", "engine: expected one of nprf::cuda::Engine, got number ",
          static_cast<int>(engine));
  require(made.has_value(), "engine: expected ", of_grids, " for a grid on a GPU, got ", name(engine));
  return std::move(*made);
}

}  // namespace nprf::cuda
