// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "nprf/core/error.hpp"

namespace nprf {

enum class Direction { bidirectional, causal };

enum class Engine { automatic, direct, fftw, lanes, block_causal, banded, recurrence, grid };

constexpr std::string_view name(Engine engine) {
  switch (engine) {
    case Engine::automatic: return "automatic";
    case Engine::direct: return "direct";
    case Engine::fftw: return "fftw";
    case Engine::lanes: return "lanes";
    case Engine::block_causal: return "block_causal";
    case Engine::banded: return "banded";
    case Engine::recurrence: return "recurrence";
    case Engine::grid: return "grid";
  }
  return "unknown";
}

/// Throws InvalidArgument if `direction` is not one of the enumerators.
inline void check_direction(Direction direction) {
  require(direction == Direction::bidirectional || direction == Direction::causal,
          "direction: expected bidirectional or causal, got number ", static_cast<int>(direction));
}

/// Throws InvalidArgument if `engine` is not one of the enumerators.
inline void check_engine(Engine engine) {
  require(name(engine) != "unknown", "engine: expected one of nprf::Engine, got number ", static_cast<int>(engine));
}

}  // namespace nprf
