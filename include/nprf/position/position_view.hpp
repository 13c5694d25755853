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

// the result of a function that returns X by reference or by value: a reference is kept as one, a value is stored
template <class X>
class ReferenceOrValue {
 public:
  template <class R>
  static ReferenceOrValue of(R&& x) {
    ReferenceOrValue returned;
    if constexpr (std::is_lvalue_reference_v<R> && std::convertible_to<std::remove_reference_t<R>*, const X*>)
      returned.m_reference = std::addressof(x);
    else
      returned.m_value.emplace(static_cast<R&&>(x));
    return returned;
  }

  const X& operator*() const { return m_value ? *m_value : *m_reference; }

 private:
  const X* m_reference = nullptr;
  std::optional<X> m_value;
};

}  // namespace detail

/// A type-erased reference to a position of scalar T. Code that uses it is compiled once for all positions. It does not
/// own the position, but stores the results of bias() and extra() if the position returns them by value.
///
/// If the position is not placed, the slot of a token is its index, and there are no extra tokens.
template <Real T>
class PositionView {
 public:
  template <Position P>
    requires std::same_as<typename P::Scalar, T>
  PositionView(const P& position)
      : m_position(&position),
        m_functions(&functions_of<P>),
        m_bias(detail::ReferenceOrValue<LagBias<T>>::of(position.bias())),
        m_extra(extra_of(position)),
        m_lag_vectors(lag_vectors_of(position)) {}

  /// b as a function of the difference of two slots.
  const LagBias<T>& bias() const { return *m_bias; }

  /// As nprf::bias_between() (position.hpp).
  double bias_between(Index i, Index j, Index offset) const {
    return is_placed() ? m_functions->bias(m_position, i, j) : bias()[j - i - offset];
  }

  /// Whether the position assigns slots to tokens (PlacedPosition).
  bool is_placed() const { return m_functions->slot != nullptr; }
  /// Throws InvalidArgument if the position assigns slots and the number of its tokens is not n or the offset is not 0.
  /// `name` is the argument's name in the message.
  void check_tokens(Index n, Index offset, const char* name) const {
    if (!is_placed()) return;
    require(n == tokens(), name, ": expected ", tokens(), " rows (the position's tokens), got ", n);
    require(offset == 0, "offset: expected 0 for a position that assigns slots, got ", offset);
  }
  /// Whether the bias is a smooth function of the lag, with few parameters (MaybeSmoothPosition).
  bool is_smooth() const { return m_functions->is_smooth != nullptr && m_functions->is_smooth(m_position); }
  /// As MaybeSmoothPosition::tangent(). Requires is_smooth().
  void tangent(const LagRange& lags, double* w) const { m_functions->tangent(m_position, lags, w); }
  /// The required number of queries and of keys. Requires is_placed().
  Index tokens() const { return m_functions->tokens(m_position); }
  /// The slot of a cell, a token that is not an extra one. Cells are counted from 0.
  Index slot(Index cell) const { return is_placed() ? m_functions->slot(m_position, cell) : cell; }
  /// The difference of the slots of cells that are one row of a grid apart; 0 if the position has no pitch().
  Index pitch() const { return m_functions->pitch != nullptr ? m_functions->pitch(m_position) : 0; }
  /// The biases of the E extra tokens (E,E+2), with the columns that PlacedPosition lists; 0 x 0 if it is not placed.
  const Matrix<T>& extra() const { return *m_extra; }

  /// The vectors of near lags (QueryBiasedPosition), which the position owns; null if it has none.
  const Matrix<T>* lag_vectors() const { return m_lag_vectors; }
  /// The channels of queries that belong to such vectors.
  Index rank() const { return m_lag_vectors ? m_lag_vectors->rows() : 0; }

  /// The gradient of the parameters (LearnedPosition). Throws InvalidArgument if the position has no gradient().
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    require(m_functions->gradient != nullptr, "position: expected one with gradient(), got one without");
    m_functions->gradient(m_position, first, db, d);
  }

 private:
  // null where the position has no such function
  struct Functions {
    Index (*tokens)(const void*) = nullptr;
    Index (*slot)(const void*, Index) = nullptr;
    Index (*pitch)(const void*) = nullptr;
    double (*bias)(const void*, Index, Index) = nullptr;
    void (*gradient)(const void*, Index, std::span<const double>, Matrix<double>&) = nullptr;
    bool (*is_smooth)(const void*) = nullptr;
    void (*tangent)(const void*, const LagRange&, double*) = nullptr;
  };

  template <class P>
  static constexpr Functions find_functions() {
    Functions functions;
    if constexpr (PlacedPosition<P>) {
      functions.tokens = [](const void* p) -> Index { return static_cast<const P*>(p)->tokens(); };
      functions.slot = [](const void* p, Index cell) -> Index { return static_cast<const P*>(p)->slot(cell); };
      functions.bias = [](const void* p, Index i, Index j) -> double { return static_cast<const P*>(p)->bias(i, j); };
    }
    if constexpr (MaybeSmoothPosition<P>) {
      functions.is_smooth = [](const void* p) { return static_cast<const P*>(p)->is_smooth(); };
      functions.tangent = [](const void* p, const LagRange& lags, double* w) {
        static_cast<const P*>(p)->tangent(lags, w);
      };
    }
    if constexpr (requires(const P& p) { p.pitch(); })
      functions.pitch = [](const void* p) -> Index { return static_cast<const P*>(p)->pitch(); };
    if constexpr (LearnedPosition<P>)
      functions.gradient = [](const void* p, Index first, std::span<const double> db, Matrix<double>& d) {
        static_cast<const P*>(p)->gradient(first, db, d);
      };
    return functions;
  }
  template <class P>
  static constexpr Functions functions_of = find_functions<P>();

  template <class P>
  static detail::ReferenceOrValue<Matrix<T>> extra_of(const P& position) {
    if constexpr (PlacedPosition<P>)
      return detail::ReferenceOrValue<Matrix<T>>::of(position.extra());
    else
      return detail::ReferenceOrValue<Matrix<T>>::of(Matrix<T>());
  }

  template <class P>
  static const Matrix<T>* lag_vectors_of(const P& position) {
    if constexpr (QueryBiasedPosition<P>)
      return position.lag_vectors().rows() > 0 ? &position.lag_vectors() : nullptr;
    else
      return nullptr;
  }

  const void* m_position;
  const Functions* m_functions;
  detail::ReferenceOrValue<LagBias<T>> m_bias;
  detail::ReferenceOrValue<Matrix<T>> m_extra;
  const Matrix<T>* m_lag_vectors;
};

}  // namespace nprf
