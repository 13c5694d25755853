// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/position/position.hpp"

namespace nprf {

namespace detail {

// what a function returned: a reference is followed, a value is held
template <class X>
class Returned {
 public:
  template <class R>
  static Returned of(R&& x) {
    Returned returned;
    if constexpr (std::is_lvalue_reference_v<R> && std::convertible_to<std::remove_reference_t<R>*, const X*>)
      returned.m_followed = std::addressof(x);
    else
      returned.m_held.emplace(static_cast<R&&>(x));
    return returned;
  }

  const X& operator*() const { return m_held ? *m_held : *m_followed; }

 private:
  const X* m_followed = nullptr;
  std::optional<X> m_held;
};

}  // namespace detail

/// A position of any type, known by its scalar alone, so that what works with it is compiled once for all positions. It
/// refers to the position; a bias that the position makes where it is asked for is made once, and held.
///
/// Tokens of a position that is not placed stand in the slots of their numbers, and none outside.
template <Real T>
class PositionView {
 public:
  template <Position P>
    requires std::same_as<typename P::Scalar, T>
  PositionView(const P& position)
      : m_position(&position),
        m_functions(&functions_of<P>),
        m_bias(detail::Returned<LagBias<T>>::of(position.bias())),
        m_extra(extra_of(position)) {}

  /// b for each difference of two slots.
  const LagBias<T>& bias() const { return *m_bias; }

  /// The bias that query token i, `offset` further on, has for key token j.
  double bias_between(Index i, Index j, Index offset) const {
    return is_placed() ? m_functions->bias(m_position, i, j) : bias()[j - i - offset];
  }

  /// Whether tokens have places of their own: PlacedPosition.
  bool is_placed() const { return m_functions->slot != nullptr; }
  /// How many there must be. For a placed position only.
  Index tokens() const { return m_functions->tokens(m_position); }
  /// The slot of a cell, a token that is not an extra one.
  Index slot(Index cell) const { return is_placed() ? m_functions->slot(m_position, cell) : cell; }
  /// The weights of E extra tokens (E,E+2); 0 x 0 for a position that is not placed.
  const Matrix<T>& extra() const { return *m_extra; }

  /// As LearnedPosition. Throws InvalidArgument for a position without gradient().
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    require(m_functions->gradient != nullptr, "position: expected one with gradient(), got one without");
    m_functions->gradient(m_position, first, db, d);
  }

 private:
  // null where the position has no such thing
  struct Functions {
    Index (*tokens)(const void*) = nullptr;
    Index (*slot)(const void*, Index) = nullptr;
    double (*bias)(const void*, Index, Index) = nullptr;
    void (*gradient)(const void*, Index, std::span<const double>, Matrix<double>&) = nullptr;
  };

  template <class P>
  static constexpr Functions find_functions() {
    Functions functions;
    if constexpr (PlacedPosition<P>) {
      functions.tokens = [](const void* p) -> Index { return static_cast<const P*>(p)->tokens(); };
      functions.slot = [](const void* p, Index cell) -> Index { return static_cast<const P*>(p)->slot(cell); };
      functions.bias = [](const void* p, Index i, Index j) -> double { return static_cast<const P*>(p)->bias(i, j); };
    }
    if constexpr (LearnedPosition<P>)
      functions.gradient = [](const void* p, Index first, std::span<const double> db, Matrix<double>& d) {
        static_cast<const P*>(p)->gradient(first, db, d);
      };
    return functions;
  }
  template <class P>
  static constexpr Functions functions_of = find_functions<P>();

  template <class P>
  static detail::Returned<Matrix<T>> extra_of(const P& position) {
    if constexpr (PlacedPosition<P>)
      return detail::Returned<Matrix<T>>::of(position.extra());
    else
      return detail::Returned<Matrix<T>>::of(Matrix<T>());
  }

  const void* m_position;
  const Functions* m_functions;
  detail::Returned<LagBias<T>> m_bias;
  detail::Returned<Matrix<T>> m_extra;
};

}  // namespace nprf
