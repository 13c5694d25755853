// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "nprf/core/error.hpp"

namespace nprf {

/// bidirectional: a query attends to all keys. causal: to the keys at its own position and before it.
enum class Direction { bidirectional, causal };

/// How the sums over the keys are computed, for n tokens. automatic: by the engine that a cost model chooses. direct:
/// tile by tile, O(n^2). banded: O(n), for biases that are constant beyond some lags. recurrence: O(n), for biases that
/// are linear in the lag beyond some lags. lanes: by nprf's FFT, O(n log n). grid: as lanes, for positions on a grid.
/// block_causal: by FFTs of blocks, O(n log^2 n), causal only. smooth: by sums over chunks, O(n), for weights that are
/// smooth functions of long lags, which it may change within the tolerance. fftw: as lanes, but by the library FFTW,
/// and with the gradients of lanes. toeplitz/product.hpp has the conditions.
enum class Engine { automatic, direct, fftw, lanes, block_causal, banded, recurrence, grid, smooth };

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
    case Engine::smooth: return "smooth";
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
