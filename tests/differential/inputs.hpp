// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>
#include <vector>

#include "differential/case.hpp"
#include "differential/draw.hpp"
#include "differential/reference.hpp"
#include "nprf/nprf.hpp"

namespace nprf::test::differential {

/// The arguments of the library for a case.
template <Real T>
struct Inputs {
  using AnyMap = std::variant<PositiveFeatures<T>, HyperbolicFeatures<T>, TrigonometricFeatures<T>, EluFeatures<T>,
                              TaylorFeatures<T>, Centred<TaylorFeatures<T>>>;
  using AnyPosition =
      std::variant<NoPosition<T>, RelativePosition<T>, T5Position<T>, AlibiPosition<T>, GridPosition<T>>;

  explicit Inputs(const Case& of);

  const Case& c;
  std::vector<AnyMap> maps;
  std::vector<AnyPosition> positions;
  std::vector<T> q, k, v, dy;  // [batch, heads, tokens, channels]
  Eigen::Array<bool, Eigen::Dynamic, 1> mask;
  std::vector<char> is_checked;

  /// Whether a key is not padding.
  bool takes_part(Index b, Index j) const {
    return (mask.size() == 0 || mask[b * c.n_k + j]) &&
           (c.lengths.empty() || j < c.lengths[static_cast<std::size_t>(b)]);
  }

  /// The same call for the reference implementation.
  Problem problem() const;

 private:
  using Drawn = Matrix<double>;

  AnyMap draw_map(Draw& draw) const;
  Centring<T> draw_centring(Draw& draw) const;
  AnyPosition position(const Bias& bias) const;
  void draw_tokens(Draw& draw, std::vector<T>& x, Index n, Tokens kind, double scale, bool may_oppose) const;
  void draw_values(Draw& draw, std::vector<T>& x, Index n, const Scaling& scaling, bool of_steps) const;
  void draw_mask(Draw& draw);
  void fill_padding(Draw& draw);
  void set_non_finite_input(Draw& draw);

  static Bias rounded(Bias bias) {
    for (auto* all : {&bias.weights, &bias.extra})
      for (Exact& b : *all) b = static_cast<T>(b);
    bias.slope = static_cast<T>(bias.slope);
    return bias;
  }
  static Matrix<Exact> rows_of(const AnyMap& map) {
    return std::visit(
        []<class F>(const F& f) {
          if constexpr (requires { f.projection(); })
            return Matrix<Exact>(f.projection().template cast<Exact>());
          else
            return Matrix<Exact>();
        },
        map);
  }
  static Model model(const AnyMap& map, const Bias& bias);
};

template <Real T>
Inputs<T>::Inputs(const Case& of) : c(of) {
  Draw draw(c.seed * 0x9e3779b97f4a7c15ULL + 1);
  for (Index h = 0; h < (c.own_map ? c.heads : 1); ++h) maps.push_back(draw_map(draw));
  for (const Bias& bias : c.biases) positions.push_back(position(bias));
  draw_tokens(draw, q, c.n_q, c.queries, c.q_scale, false);
  draw_tokens(draw, k, c.n_k, c.keys, c.k_scale, true);
  draw_values(draw, v, c.n_k, c.values, c.values_are_steps);
  draw_values(draw, dy, c.n_q, c.gradients, false);
  draw_mask(draw);
  if (c.has_non_finite_padding) fill_padding(draw);
  if (c.non_finite_in != NonFiniteIn::none) set_non_finite_input(draw);
  const auto some = [&](Index rows) {
    std::vector<char> chosen(static_cast<std::size_t>(c.n_q), rows == 0);
    for (Index row = 0; row < rows; ++row) chosen[static_cast<std::size_t>(draw.below(c.n_q))] = true;
    return chosen;
  };
  is_checked = some(c.n_q > 1000 ? 150 : 0);
  const std::vector<char> has_gradient = some(c.gradient_rows);
  for (std::size_t at = 0; at < dy.size(); ++at)
    if (!has_gradient[at / static_cast<std::size_t>(c.d_v) % has_gradient.size()]) dy[at] = 0;
}

template <Real T>
typename Inputs<T>::AnyMap Inputs<T>::draw_map(Draw& draw) const {
  const std::uint64_t seed = draw.bits();
  switch (c.map) {
    case Map::prf: return prf<T>(c.d, c.m, seed);
    case Map::orf: return orf<T>(c.d, c.m, seed);
    case Map::sphere_prf: return sphere_prf<T>(c.d, c.m, seed);
    case Map::trf: return trf<T>(c.d, c.m, seed);
    case Map::hyperbolic: return HyperbolicFeatures<T>({.input_dim = c.d, .num_features = c.m, .seed = seed});
    case Map::elu: return EluFeatures<T>(c.d);
    case Map::taylor: return TaylorFeatures<T>({.input_dim = c.d, .directions = c.directions()});
    case Map::centred_taylor:
      return Centred<TaylorFeatures<T>>(TaylorFeatures<T>({.input_dim = c.d, .directions = c.directions()}),
                                        draw_centring(draw));
    case Map::own_rows:
    case Map::long_row: break;
  }
  Matrix<T> w(c.m, c.d);
  for (Index at = 0; at < w.size(); ++at) w.data()[at] = static_cast<T>(draw.normal());
  if (c.map == Map::long_row) w.row(draw.below(c.m)) *= T(12);
  return PositiveFeatures<T>(w);
}

// means of at most a third of the rows' norms; A = S H with a diagonal S and a reflection H
template <Real T>
Centring<T> Inputs<T>::draw_centring(Draw& draw) const {
  const auto drawn = [&] {
    Vector<double> x(c.d);
    for (Index l = 0; l < c.d; ++l) x[l] = draw.normal();
    return x;
  };
  const auto mean = [&] {
    const Vector<double> x = drawn();
    return Vector<double>(x * (draw.uniform() / 3 * (c.radius > 0 ? c.radius : c.norm) / x.norm()));
  };
  const Vector<double> query_mean = mean(), key_mean = mean(), u = drawn(), stretch = (0.3 * drawn().array()).exp();
  const Matrix<double> H = Matrix<double>::Identity(c.d, c.d) - 2 / u.squaredNorm() * u * u.transpose();
  return {query_mean.template cast<T>(), key_mean.template cast<T>(),
          Matrix<double>(stretch.asDiagonal() * H).template cast<T>(),
          Matrix<double>(stretch.cwiseInverse().asDiagonal() * H).template cast<T>()};
}

template <Real T>
Model Inputs<T>::model(const AnyMap& map, const Bias& bias) {
  static constexpr Kernel kernels[] = {Kernel::positive, Kernel::hyperbolic, Kernel::trigonometric,
                                       Kernel::elu,      Kernel::taylor,     Kernel::taylor};
  Side side;
  side.w = rows_of(map);
  if (const auto* taylor = std::get_if<TaylorFeatures<T>>(&map)) side.directions = taylor->directions();
  Model model{kernels[map.index()], side, side, bias};
  if (const auto* centred = std::get_if<Centred<TaylorFeatures<T>>>(&map)) {
    const auto exact = [](const auto& x) { return x.template cast<Exact>().eval(); };
    const auto& [nu, mu, A, A_inverse] = centred->constants();
    const Index directions = centred->features().directions();
    model.queries = {{}, directions, exact(A), exact(nu), exact(mu), 0};
    model.keys = {{}, directions, exact(A_inverse), exact(mu), exact(nu), -exact(nu).dot(exact(mu))};
  }
  return model;
}

template <Real T>
typename Inputs<T>::AnyPosition Inputs<T>::position(const Bias& bias) const {
  const Bias b = rounded(bias);
  const auto matrix = [](const std::vector<Exact>& x, Index rows, Index cols) {
    return Matrix<T>(Eigen::Map<const Matrix<Exact>>(x.data(), rows, cols).template cast<T>());
  };
  const auto size = static_cast<Index>(b.weights.size());
  switch (b.place) {
    case Place::none: return NoPosition<T>();
    case Place::table: return RelativePosition<T>(Vector<T>(matrix(b.weights, size, 1)));
    case Place::t5: return t5_position<T>(Vector<T>(matrix(b.weights, size, 1)), b.direction, b.max_distance);
    case Place::alibi: return AlibiPosition<T>(static_cast<T>(b.slope));
    case Place::grid:
      return GridPosition<T>(b.height, b.width, matrix(b.weights, 2 * b.height - 1, 2 * b.width - 1),
                             matrix(b.extra, b.extra_tokens, b.extra_tokens + 2));
  }
  return NoPosition<T>();
}

template <Real T>
void Inputs<T>::draw_tokens(Draw& draw, std::vector<T>& x, Index n, Tokens kind, double scale, bool may_oppose) const {
  // the norms that the feature map gets: rows are multiplied by d^(-1/4), except for elu
  const double d = static_cast<double>(c.d), given = c.map == Map::elu ? 1 : std::sqrt(std::sqrt(d));
  x.reserve(static_cast<std::size_t>(c.batch * c.heads * n * c.d));
  for (Index item = 0; item < c.batch * c.heads; ++item) {
    const Drawn w = rows_of(maps[c.own_map ? static_cast<std::size_t>(item % c.heads) : 0]).template cast<double>();
    Drawn rows(n, c.d);
    for (Index at = 0; at < rows.size(); ++at) rows.data()[at] = draw.normal();
    const Index chosen = draw.below(n), other = draw.below(n);
    for (Index i = 0; i < n; ++i) {
      const bool along = w.size() > 0 && (kind == Tokens::along_rows || kind == Tokens::opposed);
      if (along) rows.row(i) = w.row(kind == Tokens::opposed ? 0 : i % w.rows());
      if (along && kind == Tokens::opposed && may_oppose && draw.one_in(2)) rows.row(i) *= -1;
      if (kind == Tokens::alike) rows.row(i) = rows.row(0).eval();
      const double norm = rows.row(i).norm();
      const double wanted = c.norm * given * (along || kind == Tokens::alike ? 1 : 0.5 + draw.uniform() / 2);
      rows.row(i) *= norm > 0 ? wanted / norm : 0;
      if (kind == Tokens::one_long && i != chosen) rows.row(i) *= 0.25;
      if (kind == Tokens::few_long && i != chosen && i != other) rows.row(i) *= 0.05;
      if (kind == Tokens::some_tiny && draw.one_in(3)) rows.row(i) *= draw.one_of({1e-3, 1e-8, 1e-20, 1e-35});
      if (kind == Tokens::some_zero && draw.one_in(3)) rows.row(i).setZero();
    }
    rows *= scale;
    for (Index at = 0; at < rows.size(); ++at) x.push_back(static_cast<T>(rows.data()[at]));
  }
}

template <Real T>
void Inputs<T>::draw_values(Draw& draw, std::vector<T>& x, Index n, const Scaling& scaling, bool of_steps) const {
  x.reserve(static_cast<std::size_t>(c.batch * c.heads * n * c.d_v));
  const Index column = draw.below(c.d_v), row = draw.below(n);
  for (Index item = 0; item < c.batch * c.heads; ++item)
    for (Index i = 0; i < n; ++i)
      for (Index p = 0; p < c.d_v; ++p) {
        const bool by =
            scaling.what == Scaled::all || (scaling.what == Scaled::one_column && p == column) ||
            (scaling.what == Scaled::one_row && i == row) || (scaling.what == Scaled::half_of_rows && i % 2 == 1) ||
            (scaling.what == Scaled::first_rows && i <= row) || (scaling.what == Scaled::last_rows && i >= row);
        x.push_back(static_cast<T>((of_steps ? (i < row ? 1 : 0.1) : draw.normal()) * (by ? scaling.by : 1)));
      }
}

template <Real T>
void Inputs<T>::draw_mask(Draw& draw) {
  if (c.masked == Masked::none) return;
  mask.resize(c.batch * c.n_k);
  const Index one = draw.below(c.n_k), prefix = draw.below(c.n_k), odd = draw.below(2);
  for (Index b = 0; b < c.batch; ++b)
    for (Index j = 0; j < c.n_k; ++j) {
      bool& is_left = mask[b * c.n_k + j];
      switch (c.masked) {
        case Masked::none: break;
        case Masked::random: is_left = draw.one_in(2); break;
        case Masked::every_second: is_left = j % 2 == odd; break;
        case Masked::all_but_one: is_left = j == one; break;
        case Masked::prefix: is_left = j <= prefix; break;
      }
    }
}

template <Real T>
void Inputs<T>::fill_padding(Draw& draw) {
  using Limits = std::numeric_limits<T>;
  for (Index item = 0; item < c.batch * c.heads; ++item)
    for (Index j = 0; j < c.n_k; ++j) {
      if (takes_part(item / c.heads, j)) continue;
      const T value = draw.one_of({Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::max()});
      const Index row = item * c.n_k + j;
      if (!draw.one_in(3)) k[static_cast<std::size_t>(row * c.d + draw.below(c.d))] = value;
      if (!draw.one_in(3)) v[static_cast<std::size_t>(row * c.d_v + draw.below(c.d_v))] = value;
    }
}

template <Real T>
void Inputs<T>::set_non_finite_input(Draw& draw) {
  std::vector<T>& x = c.non_finite_in == NonFiniteIn::query   ? q
                      : c.non_finite_in == NonFiniteIn::key   ? k
                      : c.non_finite_in == NonFiniteIn::value ? v
                                                              : dy;
  const Index channels = c.non_finite_in == NonFiniteIn::query || c.non_finite_in == NonFiniteIn::key ? c.d : c.d_v,
              n = static_cast<Index>(x.size()) / channels;
  // often a late key, to which few causal rows attend
  const Index row = draw.one_in(2) ? n - 1 - draw.below(1 + n / 8) : draw.below(n);
  x[static_cast<std::size_t>(row * channels + draw.below(channels))] = static_cast<T>(c.non_finite_value);
}

template <Real T>
Problem Inputs<T>::problem() const {
  Problem x;
  x.batch = c.batch, x.heads = c.heads, x.n_q = c.n_q, x.n_k = c.n_k, x.d = c.d, x.d_v = c.d_v;
  x.causal = c.causal, x.offset = c.offset, x.near = c.near, x.sinks = c.sinks, x.radius = c.radius,
  x.is_checked = is_checked;
  x.largest = std::numeric_limits<T>::max() / 4;
  x.root = std::sqrt(static_cast<Exact>(std::numeric_limits<T>::min()));
  for (Index h = 0; h < c.heads; ++h) {
    const AnyMap& map = maps[c.own_map ? static_cast<std::size_t>(h) : 0];
    x.models.push_back(model(map, rounded(c.biases[c.biases.size() > 1 ? static_cast<std::size_t>(h) : 0])));
  }
  for (Index b = 0; b < c.batch; ++b)
    for (Index j = 0; j < c.n_k; ++j) x.takes_part.push_back(takes_part(b, j));
  if (c.padding == Padding::packed)
    for (std::size_t s = 1; s < c.query_ends.size(); ++s)
      x.sequences.push_back({c.query_ends[s - 1], c.query_ends[s] - c.query_ends[s - 1], c.key_ends[s - 1],
                             c.key_ends[s] - c.key_ends[s - 1]});
  else
    x.sequences.push_back({0, c.n_q, 0, c.n_k});
  x.q.assign(q.begin(), q.end()), x.k.assign(k.begin(), k.end());
  x.v.assign(v.begin(), v.end()), x.dy.assign(dy.begin(), dy.end());
  return x;
}

}  // namespace nprf::test::differential
