// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <variant>

#include "nprf/config.hpp"
#include "nprf/core/error.hpp"
#include "nprf/toeplitz/banded/engine.hpp"
#include "nprf/toeplitz/block_causal/engine.hpp"
#include "nprf/toeplitz/direct/engine.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/fft/engine.hpp"
#include "nprf/toeplitz/fftw/engine.hpp"
#include "nprf/toeplitz/smooth/engine.hpp"

namespace nprf::toeplitz {

namespace detail {

template <class T, class... E>
struct EngineTypes {
  static_assert((ToeplitzEngine<E, T> && ...),
                "nprf: an engine must model nprf::toeplitz::ToeplitzEngine (engine.hpp)");

  /// An engine of one of these types, or none.
  using Variant = std::variant<std::monostate, E...>;

  /// Calls use(std::type_identity<E>()) for each engine type E.
  template <class Use>
  static constexpr void for_each(Use&& use) {
    (use(std::type_identity<E>()), ...);
  }
};

}  // namespace detail

/// The engines of this build. Of several that cost the same, Engine::automatic chooses the first.
template <Real T>
using EngineList =
    detail::EngineTypes<T, DirectEngine<T>, BandedEngine<T>, FftEngine<T>, BlockCausalEngine<T>, SmoothEngine<T>
#if NPRF_USE_FFTW
                        ,
                        FftwEngine<T>
#endif
                        >;

/// Calls use(std::type_identity<E>()) for the engine type E that has this name. Returns whether this build has one.
template <Real T, class Use>
constexpr bool with_engine(Engine name, Use&& use) {
  bool found = false;
  EngineList<T>::for_each([&]<class E>(std::type_identity<E> type) {
    if (has_name<E>(name)) use(type), found = true;
  });
  return found;
}

/// Properties of an engine (engine.hpp).
struct EngineProperties {
  Rounding rounding = Rounding::per_row;
  bool accepts_key_log_scales = false;
};

constexpr EngineProperties properties_of(Engine name) {
  EngineProperties found;
  with_engine<float>(name, [&]<class E>(std::type_identity<E>) { found = {E::rounding, E::accepts_key_log_scales}; });
  return found;
}

/// Throws InvalidArgument for an engine that this build does not have, and for a number that is not an Engine.
inline void require_available(Engine engine) {
  check_engine(engine);
  require(engine == Engine::automatic || with_engine<float>(engine, [](auto) {}),
          "engine: expected one that this build has, got ", name(engine), ", which needs NPRF_USE_FFTW=1");
}

}  // namespace nprf::toeplitz
