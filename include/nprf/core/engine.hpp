// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

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

}  // namespace nprf
