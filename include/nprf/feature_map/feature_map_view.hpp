// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map.hpp"

namespace nprf {

class Team;

namespace detail {

// separate concepts, because nvcc does not find T in a requires-expression inside a member function
template <class F, class T>
concept HasTeamQueries = requires(const F& f, const MatrixView<T>& x, MatrixRef<T> phi, const Team& team) {
  f.queries(x, RowScale<T>(), phi, team);
};
template <class F, class T>
concept HasTeamKeys = requires(const F& f, const MatrixView<T>& x, MatrixRef<T> phi, const Team& team) {
  f.keys(x, RowScale<T>(), phi, team);
};
template <class F, class T>
concept HasTeamBackward =
    requires(const F& f, const MatrixView<T>& x, MatrixRef<T> dx, const Team& team) { f.backward(x, x, x, dx, team); };
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
  double relative_error(double norm) const {
    return m_functions->relative_error ? m_functions->relative_error(m_map, norm) : 0;
  }

  /// Sets phi (n,r) to the features of the rows scale_i x_i of x (n,d). An empty scale means that all factors are 1.
  /// Throws InvalidArgument if the map throws it or returns another shape.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;

  /// Whether the map has log-factors: the logarithms of the factors that the features of rows omit (feature_map.hpp).
  bool has_log_factors() const { return m_functions->with_log_factors != nullptr; }
  /// Writes the features phi (n,r) of queries, and their log-factors to log_factor (n):
  /// phi(scale_i x_i) = exp(log_factor_i) times row i of phi. No row depends on another. Requires has_log_factors().
  void with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                        const Team& team) const;
  /// The same for keys.
  void keys_with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                             const Team& team) const;

  /// Whether the bits of a row that these two functions write do not depend on the other rows of x.
  bool has_independent_rows() const { return has_log_factors() && m_functions->has_independent_rows; }
  /// Whether with_log_factors() and keys_with_log_factors() compute the same features.
  bool has_equal_sides() const {
    return has_log_factors() && m_functions->with_log_factors == m_functions->keys_with_log_factors;
  }

  /// Sets dx (n,d) for queries, from the scaled rows x (n,d), phi (n,r) and dphi (n,r). Throws InvalidArgument as
  /// queries does.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;
  /// The same for keys.
  void backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                     const Team& team) const;

 private:
  // the types of a map's functions. Those that write into the caller's storage by a team are null if the map does not
  // have them. The plain ones return matrices
  using Features = void(const void*, const MatrixView<T>&, RowScale<T>, MatrixRef<T>, const Team&);
  using Backward = void(const void*, const MatrixView<T>&, const MatrixView<T>&, const MatrixView<T>&, MatrixRef<T>,
                        const Team&);
  using WithLogFactors = void(const void*, const MatrixView<T>&, RowScale<T>, MatrixRef<T>, T*, const Team&);
  using PlainFeatures = Matrix<T>(const void*, const MatrixView<T>&);
  using PlainBackward = Matrix<T>(const void*, const MatrixView<T>&, const MatrixView<T>&, const MatrixView<T>&);

  struct Functions {
    PlainFeatures *plain_queries, *plain_keys;
    PlainBackward* plain_backward;
    Features *queries = nullptr, *keys = nullptr;
    Backward *backward = nullptr, *backward_keys = nullptr;
    WithLogFactors *with_log_factors = nullptr, *keys_with_log_factors = nullptr;
    double (*relative_error)(const void*, double) = nullptr;
    bool estimates_exp, falls_back_to_softmax, is_positive, is_series, has_independent_rows;
  };

  template <class F>
  static const F& as(const void* map) {
    return *static_cast<const F*>(map);
  }
  template <class F>
  static constexpr Functions find_functions() {
    Functions found{
        .plain_queries = [](const void* f, const MatrixView<T>& x) -> Matrix<T> { return as<F>(f).queries(x); },
        .plain_keys = [](const void* f, const MatrixView<T>& x) -> Matrix<T> { return as<F>(f).keys(x); },
        .plain_backward = [](const void* f, const MatrixView<T>& x, const MatrixView<T>& phi,
                             const MatrixView<T>& dphi) -> Matrix<T> { return as<F>(f).backward(x, phi, dphi); },
        .estimates_exp = nprf::estimates_exp<F>(),
        .falls_back_to_softmax = nprf::falls_back_to_softmax<F>(),
        .is_positive = nprf::is_positive<F>(),
        .is_series = nprf::is_series<F>(),
        .has_independent_rows = nprf::has_independent_rows<F>()};
    if constexpr (detail::HasTeamQueries<F, T>)
      found.queries = [](const void* f, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) {
        as<F>(f).queries(x, scale, phi, team);
      };
    if constexpr (detail::HasTeamKeys<F, T>)
      found.keys = [](const void* f, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) {
        as<F>(f).keys(x, scale, phi, team);
      };
    if constexpr (detail::HasTeamBackward<F, T>)
      found.backward = found.backward_keys = [](const void* f, const MatrixView<T>& x, const MatrixView<T>& phi,
                                                const MatrixView<T>& dphi, MatrixRef<T> dx,
                                                const Team& team) { as<F>(f).backward(x, phi, dphi, dx, team); };
    if constexpr (detail::HasKeyBackward<F, T>)
      found.backward_keys = [](const void* f, const MatrixView<T>& x, const MatrixView<T>& phi,
                               const MatrixView<T>& dphi, MatrixRef<T> dx,
                               const Team& team) { as<F>(f).backward_keys(x, phi, dphi, dx, team); };
    if constexpr (detail::HasLogFactors<F, T>)
      found.with_log_factors = found.keys_with_log_factors =
          [](const void* f, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
             const Team& team) { as<F>(f).queries(x, scale, phi, team, log_factor); };
    if constexpr (detail::HasKeyFactors<F, T>)
      found.keys_with_log_factors = [](const void* f, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                       T* log_factor,
                                       const Team& team) { as<F>(f).keys_by_row(x, scale, phi, team, log_factor); };
    if constexpr (requires(const F& f, double norm) {
                    { f.relative_error(norm) } -> std::convertible_to<double>;
                  })
      found.relative_error = [](const void* f, double norm) -> double { return as<F>(f).relative_error(norm); };
    return found;
  }
  template <class F>
  static constexpr Functions functions_of = find_functions<F>();

  const void* m_map;
  const Functions* m_functions;
  Index m_input_dim, m_output_dim;
};

// a definition that nprf::levels replaces for nprf's own maps (levels.hpp)
template <Real T>
template <FeatureMap F>
  requires std::same_as<typename F::Scalar, T>
FeatureMapView<T>::FeatureMapView(const F& map)
    : m_map(&map), m_functions(&functions_of<F>), m_input_dim(map.input_dim()), m_output_dim(map.output_dim()) {}

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/feature_map_view_definition.hpp"
#endif
