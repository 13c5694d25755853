// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/engine.hpp"

#include <concepts>

#include "nprf/toeplitz/direct/engine.hpp"
#include "support/catch.hpp"

namespace nprf::test::toeplitz_engine {

namespace {

using toeplitz::Factors;
using toeplitz::Rounding;

// declares what an engine must have, without error bounds
template <Rounding rounding_, class T = double>
struct Minimal {
  Minimal(LagWeightsView<T>, const ProductShape&, const Team&);

  static constexpr Engine names[] = {Engine::banded, Engine::recurrence};
  static constexpr Rounding rounding = rounding_;
  static constexpr bool accepts_key_log_scales = false, is_automatic = false;
  static double cost(const toeplitz::CostInputs<T>&);
  Index longest_plain_sum(Index) const;
  void contract(const Factors<T>&, MatrixRef<T>, const Team&, T*) const;
  void gradients(const Factors<T>&, const MatrixView<T>&, toeplitz::GradientRefs<T>, const toeplitz::GradientSizes<T>&,
                 const Team&) const;
};

struct WithRowBounds : Minimal<Rounding::global> {
  using Minimal::Minimal;
  void row_error_bounds(const Factors<double>&, const double*, toeplitz::RowErrorBounds, const Team&) const;
};

struct WithBounds : WithRowBounds {
  using WithRowBounds::WithRowBounds;
  void gradient_error_bounds(const Factors<double>&, const toeplitz::GradientScales<double>&,
                             toeplitz::GradientErrorBounds, const Team&) const;
};

// an engine of which only the product is its own
struct ContractAlone : toeplitz::DirectEngine<double> {
  using DirectEngine::DirectEngine;
  static constexpr Engine names[] = {Engine::fftw};
  void contract(const Factors<double>&, MatrixRef<double>, const Team&, double*) const;
};

struct WithoutGradients : Minimal<Rounding::per_row> {
  using Minimal::Minimal;
  void gradients() const;
};

}  // namespace

TEST_CASE("an engine needs error bounds unless its rounding is per row", "[toeplitz]") {
  STATIC_REQUIRE(toeplitz::ToeplitzEngine<Minimal<Rounding::per_row>, double>);
  STATIC_REQUIRE_FALSE(toeplitz::ToeplitzEngine<Minimal<Rounding::per_block>, double>);
  STATIC_REQUIRE_FALSE(toeplitz::ToeplitzEngine<Minimal<Rounding::global>, double>);
  STATIC_REQUIRE_FALSE(toeplitz::ToeplitzEngine<WithRowBounds, double>);
  STATIC_REQUIRE(toeplitz::ToeplitzEngine<WithBounds, double>);
}

TEST_CASE("an engine has gradients, and its own scalar", "[toeplitz]") {
  STATIC_REQUIRE_FALSE(toeplitz::ToeplitzEngine<WithoutGradients, double>);
  STATIC_REQUIRE_FALSE(toeplitz::ToeplitzEngine<Minimal<Rounding::per_row>, float>);
}

TEST_CASE("an engine may offer a product alone and take all else from another engine", "[toeplitz]") {
  STATIC_REQUIRE(toeplitz::ToeplitzEngine<ContractAlone, double>);
  STATIC_REQUIRE(
      (toeplitz::has_name<ContractAlone>(Engine::fftw) && !toeplitz::has_name<ContractAlone>(Engine::direct)));
}

TEST_CASE("an engine may have several names", "[toeplitz]") {
  using E = Minimal<Rounding::per_row>;
  STATIC_REQUIRE((toeplitz::has_name<E>(Engine::banded) && toeplitz::has_name<E>(Engine::recurrence)));
  STATIC_REQUIRE_FALSE((toeplitz::has_name<E>(Engine::direct) || toeplitz::has_name<E>(Engine::automatic)));
}

}  // namespace nprf::test::toeplitz_engine
