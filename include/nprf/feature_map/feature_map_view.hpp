// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/scale_rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map.hpp"

namespace nprf {

namespace detail {

// separate concepts, because nvcc does not find T in a requires-expression inside a member function
template <class F, class T>
concept HasLogFactors = requires(const F& f, const MatrixView<T>& x, MatrixRef<T> phi, const Team& team,
                                 T* log_factor) { f.queries(x, RowScale<T>(), phi, team, log_factor); };
// maps whose keys have other features than queries (feature_map.hpp)
template <class F, class T>
concept HasKeyFactors = requires(const F& f, const MatrixView<T>& x, MatrixRef<T> phi, const Team& team,
                                 T* log_factor) { f.keys_by_row(x, RowScale<T>(), phi, team, log_factor); };
template <class F, class T>
concept HasKeyBackward = requires(const F& f, const MatrixView<T>& x, MatrixRef<T> dx, const Team& team) {
  f.backward_keys(x, x, x, dx, team);
};

}  // namespace detail

/// A type-erased reference to a feature map of scalar T. Code that uses it is compiled once for all maps. It does not
/// own the map, and is cheap to copy.
///
/// If the map has the overloads that write into the caller's storage by a team, as nprf's own maps have, the view calls
/// them. Otherwise it passes scaled rows to the overloads that return matrices, and copies the results.
///
/// The features of a row with a NaN or an infinity are NaN, also those that do not depend on that entry.
template <Real T>
class FeatureMapView {
 public:
  template <FeatureMap F>
    requires std::same_as<typename F::Scalar, T>
  FeatureMapView(const F& map);

  Index input_dim() const { return m_input_dim; }
  Index output_dim() const { return m_output_dim; }
  bool estimates_exp() const { return m_functions->estimates_exp; }
  bool falls_back_to_softmax() const { return m_functions->falls_back_to_softmax; }
  bool is_positive() const { return m_functions->is_positive; }
  bool is_series() const { return m_functions->is_series; }

  /// The map's bound on the relative error of its features, for rows of at most that norm; 0 if the map has none.
  double relative_error(double norm) const { return m_functions->relative_error(m_map, norm); }

  /// phi (n,r) of the rows scale_i x_i, x (n,d); an empty scale means that all factors are 1. Throws InvalidArgument if
  /// the map throws it or returns another shape.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
    m_functions->queries(m_map, x, scale, phi, team);
    propagate_non_finite(x, phi, team);
  }
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
    m_functions->keys(m_map, x, scale, phi, team);
    propagate_non_finite(x, phi, team);
  }

  /// Whether the map can report the factor that it omits from each row.
  bool has_log_factors() const { return m_functions->with_log_factors != nullptr; }
  /// Writes phi (n,r) and log_factor (n), where phi(scale_i x_i) = exp(log_factor_i) times row i of phi, for queries.
  /// No row depends on another. Requires has_log_factors().
  void with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                        const Team& team) const {
    m_functions->with_log_factors(m_map, x, scale, phi, log_factor, team);
    propagate_non_finite(x, phi, team);
  }
  /// The same for keys.
  void keys_with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                             const Team& team) const {
    m_functions->keys_with_log_factors(m_map, x, scale, phi, log_factor, team);
    propagate_non_finite(x, phi, team);
  }

  /// Whether the bits of these rows do not depend on the other rows of the call.
  bool has_independent_rows() const { return has_log_factors() && m_functions->has_independent_rows; }
  /// Whether queries and keys have the same features, by with_log_factors().
  bool has_equal_sides() const {
    return has_log_factors() && m_functions->with_log_factors == m_functions->keys_with_log_factors;
  }

  /// dx (n,d) of queries from the scaled rows x (n,d), phi (n,r) and dphi (n,r). Throws InvalidArgument as queries
  /// does.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const {
    m_functions->backward(m_map, x, phi, dphi, dx, team);
  }
  /// The same for keys.
  void backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                     const Team& team) const {
    m_functions->backward_keys(m_map, x, phi, dphi, dx, team);
  }

 private:
  using Features = void(const void*, const MatrixView<T>&, RowScale<T>, MatrixRef<T>, const Team&);
  using Backward = void(const void*, const MatrixView<T>&, const MatrixView<T>&, const MatrixView<T>&, MatrixRef<T>,
                        const Team&);

  using WithLogFactors = void(const void*, const MatrixView<T>&, RowScale<T>, MatrixRef<T>, T*, const Team&);

  struct Functions {
    Features *queries, *keys;
    WithLogFactors *with_log_factors, *keys_with_log_factors;  // null if the map has none
    Backward *backward, *backward_keys;
    double (*relative_error)(const void*, double);
    bool estimates_exp, falls_back_to_softmax, is_positive, is_series, has_independent_rows;
  };

  static void propagate_non_finite(const MatrixView<T>& x, MatrixRef<T>& phi, const Team& team) {
    team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i)
        if (!all_finite(x.row(i).data(), x.cols())) phi.row(i).setConstant(std::numeric_limits<T>::quiet_NaN());
    });
  }

  template <class F>
  static void queries_of(const void* map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                         const Team& team) {
    const F& f = *static_cast<const F*>(map);
    if constexpr (requires { f.queries(x, scale, phi, team); })
      f.queries(x, scale, phi, team);
    else
      with_scaled(x, scale, team, [&](const MatrixView<T>& xs) { set_checked(phi, f.queries(xs)); });
  }
  template <class F>
  static void keys_of(const void* map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) {
    const F& f = *static_cast<const F*>(map);
    if constexpr (requires { f.keys(x, scale, phi, team); })
      f.keys(x, scale, phi, team);
    else
      with_scaled(x, scale, team, [&](const MatrixView<T>& xs) { set_checked(phi, f.keys(xs)); });
  }
  template <class F>
  static void backward_of(const void* map, const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                          MatrixRef<T> dx, const Team& team) {
    const F& f = *static_cast<const F*>(map);
    if constexpr (requires { f.backward(x, phi, dphi, dx, team); })
      f.backward(x, phi, dphi, dx, team);
    else
      set_checked(dx, f.backward(x, phi, dphi));
  }

  template <class F>
  static void backward_keys_of(const void* map, const MatrixView<T>& x, const MatrixView<T>& phi,
                               const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) {
    if constexpr (detail::HasKeyBackward<F, T>)
      static_cast<const F*>(map)->backward_keys(x, phi, dphi, dx, team);
    else
      backward_of<F>(map, x, phi, dphi, dx, team);
  }

  template <class F>
  static double relative_error_of(const void* map, double norm) {
    if constexpr (requires(const F& f) {
                    { f.relative_error(norm) } -> std::convertible_to<double>;
                  })
      return static_cast<const F*>(map)->relative_error(norm);
    else
      return 0;
  }

  template <class F>
  static constexpr WithLogFactors* with_log_factors_of() {
    if constexpr (detail::HasLogFactors<F, T>)
      return [](const void* map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                const Team& team) { static_cast<const F*>(map)->queries(x, scale, phi, team, log_factor); };
    else
      return nullptr;
  }

  template <class F>
  static constexpr WithLogFactors* keys_with_log_factors_of() {
    if constexpr (detail::HasKeyFactors<F, T>)
      return [](const void* map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                const Team& team) { static_cast<const F*>(map)->keys_by_row(x, scale, phi, team, log_factor); };
    else
      return with_log_factors_of<F>();
  }

  template <class F>
  static constexpr Functions functions_of{&queries_of<F>,
                                          &keys_of<F>,
                                          with_log_factors_of<F>(),
                                          keys_with_log_factors_of<F>(),
                                          &backward_of<F>,
                                          &backward_keys_of<F>,
                                          &relative_error_of<F>,
                                          nprf::estimates_exp<F>(),
                                          nprf::falls_back_to_softmax<F>(),
                                          nprf::is_positive<F>(),
                                          nprf::is_series<F>(),
                                          nprf::has_independent_rows<F>()};

  template <class Use>
  static void with_scaled(const MatrixView<T>& x, RowScale<T> scale, const Team& team, Use&& use) {
    if (scale.empty()) return use(x);
    const Workspace::Scope scope(team.workspace());
    auto xs = team.workspace().template matrix<T>(x.rows(), x.cols());
    scale_rows<T>(x, scale, xs, team);
    use(xs);
  }

  // a user's own map may return a matrix of a wrong shape
  static void set_checked(MatrixRef<T>& x, const Matrix<T>& returned) {
    require(returned.rows() == x.rows() && returned.cols() == x.cols(), "feature map: expected to return ", x.rows(),
            " x ", x.cols(), ", got ", returned.rows(), " x ", returned.cols());
    x = returned;
  }

  const void* m_map;
  const Functions* m_functions;
  Index m_input_dim, m_output_dim;
};

// not inline: see instances.hpp
template <Real T>
template <FeatureMap F>
  requires std::same_as<typename F::Scalar, T>
FeatureMapView<T>::FeatureMapView(const F& map)
    : m_map(&map), m_functions(&functions_of<F>), m_input_dim(map.input_dim()), m_output_dim(map.output_dim()) {}

}  // namespace nprf
