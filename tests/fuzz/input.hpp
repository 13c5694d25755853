// SPDX-License-Identifier: MIT
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "nprf/nprf.hpp"

namespace nprf::fuzz {

/// A map of the user's own: x^2, returned, with no factors.
template <Real T>
struct Squares {
  using Scalar = T;
  Index d;

  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<T> queries(const MatrixView<T>& x) const { return x.array().square(); }
  Matrix<T> keys(const MatrixView<T>& x) const { return queries(x); }
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>&, const MatrixView<T>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

/// A position of the user's own: any bias, returned, with no gradient.
template <Real T>
struct AnyBias {
  using Scalar = T;
  LagBias<T> held;

  LagBias<T> bias() const { return held; }
};

template <Real T>
using AnyMap = std::variant<PositiveFeatures<T>, TrigonometricFeatures<T>, HyperbolicFeatures<T>, EluFeatures<T>,
                            TaylorFeatures<T>, Squares<T>>;
template <Real T>
using AnyPosition =
    std::variant<NoPosition<T>, RelativePosition<T>, T5Position<T>, AlibiPosition<T>, GridPosition<T>, AnyBias<T>>;

/// What the fuzzer's bytes ask for; where they have run out, something usual. Half of the inputs are tame: their
/// numbers are finite and moderate.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : m_bytes(data, size), m_tame(flag()) {}

  bool tame() const { return m_tame; }

  bool flag() { return m_bytes.ConsumeBool(); }
  Index number(Index low, Index high) { return m_bytes.ConsumeIntegralInRange(low, high); }
  template <class X>
  X one_of(std::initializer_list<const X> list) {
    return m_bytes.PickValueInArray(list);
  }

  /// 0 to most.
  Index up_to(Index most) { return most - number(0, most); }
  /// The same, few more often than many.
  Index size(Index most) { return up_to(number(0, 3) == 3 ? most : std::min<Index>(most, 20)); }
  /// Now and then another number than the expected one, which may be negative.
  Index size_near(Index expected) { return number(0, 31) == 31 ? number(-2, 2 * expected + 2) : expected; }

  template <Real T>
  T scalar() {
    using Limits = std::numeric_limits<T>;
    using Bits = std::conditional_t<sizeof(T) == sizeof(std::uint32_t), std::uint32_t, std::uint64_t>;
    const T moderate = -m_bytes.ConsumeFloatingPointInRange<T>(-2, 2);
    if (m_tame) return moderate;
    switch (number(0, 3)) {
      case 0: return moderate;
      case 1: return std::bit_cast<T>(m_bytes.ConsumeIntegral<Bits>());
      case 2: return std::ldexp(moderate, static_cast<int>(number(Limits::min_exponent, Limits::max_exponent)));
      default:
        return one_of<T>({0, -T(0), Limits::denorm_min(), Limits::min(), Limits::max(), -Limits::max(),
                          Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()});
    }
  }

  /// Numbers from -2 to 2, scaled; in a wild input some of them replaced.
  template <Real T>
  void fill(std::span<T> x) {
    auto state = static_cast<std::uint32_t>(number(0, 255));
    for (T& value : x) {
      state = state * 1664525 + 1013904223;
      value = static_cast<T>(static_cast<double>(state) * 0x1p-30 - 2);
    }
    if (m_tame || x.empty()) return;
    const T scale = flag() ? scalar<T>() : T(1);
    for (T& value : x) value *= scale;
    for (Index replaced = number(0, 8); replaced > 0; --replaced)
      x[static_cast<std::size_t>(number(0, static_cast<Index>(x.size()) - 1))] = scalar<T>();
  }

  template <Real T>
  Matrix<T> matrix(Index rows, Index cols) {
    Matrix<T> x(std::max<Index>(rows, 0), std::max<Index>(cols, 0));
    fill(std::span<T>(x.data(), static_cast<std::size_t>(x.size())));
    return x;
  }

  /// Scalars of a bias, some of them -infinity.
  template <Real T>
  Matrix<T> bias(Index rows, Index cols) {
    Matrix<T> b = matrix<T>(rows, cols);
    if (b.size() == 0) return b;
    for (Index runs = number(0, 3); runs > 0; --runs) {
      const Index first = number(0, b.size() - 1), length = number(1, b.size() - first);
      std::fill_n(b.data() + first, length, -std::numeric_limits<T>::infinity());
    }
    return b;
  }

  /// Throws InvalidArgument, as the next.
  template <Real T>
  AnyMap<T> map(Index d) {
    const Index kind = number(0, 5);
    if (kind == 5) return TaylorFeatures<T>({.input_dim = d, .directions = size_near(number(0, 3))});
    if (kind == 3) return EluFeatures<T>(d);
    if (kind == 4) return Squares<T>{std::max<Index>(d, 0)};
    const Index m = up_to(12);
    if (flag()) {
      const Matrix<T> rows = matrix<T>(m, d);
      if (kind == 0) return PositiveFeatures<T>(rows);
      if (kind == 1) return TrigonometricFeatures<T>(rows);
      return HyperbolicFeatures<T>(rows);
    }
    const FeatureOptions options{
        .input_dim = d,
        .num_features = m,
        .projection = one_of<Projection>({Projection::gaussian, Projection::orthogonal, Projection::sphere,
                                          Projection::simplex, Projection::sphere_simplex}),
        .seed = m_bytes.ConsumeIntegral<std::uint64_t>()};
    if (kind == 0) return PositiveFeatures<T>(options);
    if (kind == 1) return TrigonometricFeatures<T>(options);
    return HyperbolicFeatures<T>(options);
  }

  template <Real T>
  AnyPosition<T> position(const AttentionOptions& options) {
    const bool placed = options.engine == Engine::grid && number(0, 7) < 7;  // elsewhere that engine is refused
    switch (placed ? 4 : number(0, 5)) {
      case 0: return NoPosition<T>();
      case 1: {
        Vector<T> b = bias<T>(2 * size(310) + 1 - number(0, 31) / 31, 1);
        return RelativePosition<T>(flag() ? resize_bias(b, 2 * size(310) + 1) : b);
      }
      case 2: return T5Position<T>(bias<T>(2 * up_to(20) + number(0, 31) / 31, 1), options.direction, up_to(200));
      case 3: return AlibiPosition<T>(scalar<T>());
      case 4: {
        const Index height = 1 + size(16), width = 1 + size(16), extra = number(0, 3);
        Matrix<T> b = bias<T>(size_near(2 * height - 1), size_near(2 * width - 1));
        if (flag() && b.size() > 0) b = resize_bias(b, height, width);
        return GridPosition<T>(size_near(height), width, b, bias<T>(extra, size_near(extra + 2)));
      }
      default: {
        AnyBias<T> any;
        any.held.first = number(-400, 400);
        any.held.table = bias<T>(size(310), 1);
        any.held.slope_before = scalar<T>();
        any.held.slope_after = scalar<T>();
        return any;
      }
    }
  }

  AttentionOptions options() {
    const Direction direction = one_of<Direction>({Direction::bidirectional, Direction::causal});
    const auto radius = [&] { return m_tame ? m_bytes.ConsumeFloatingPointInRange<double>(0.1, 2) : scalar<double>(); };
    const Normalization normalization = flag() ? Normalization::none() : Normalization::unit(radius());
    return {
        .direction = direction,
        .normalization = normalization,
        .engine = one_of<Engine>({Engine::automatic, Engine::direct, Engine::fftw, Engine::lanes, Engine::block_causal,
                                  Engine::banded, Engine::recurrence, Engine::grid, Engine::smooth}),
        .near = flag() ? 0 : one_of<Index>({1, 3, 40, 1000, -1}),
        .sinks = flag() ? 0 : one_of<Index>({1, 2, 30, -1})};
  }

  double tolerance() {
    return flag()   ? 0
           : m_tame ? one_of<double>({1e-12, 1e-2, std::numeric_limits<double>::infinity()})
                    : scalar<double>();
  }

  Index offset() {
    switch (number(0, 7)) {
      case 0: return number(-400, 400);
      case 1: return m_bytes.ConsumeIntegral<Index>();
      case 2: return one_of<Index>({-(Index{1} << 40), Index{1} << 40});
      default: return 0;
    }
  }

 private:
  FuzzedDataProvider m_bytes;
  bool m_tame;
};

/// Whether two calls compute the same formula: with a near field or attention sinks, rows that are recomputed for their
/// rounding error are those of exact softmax, and each engine has other such rows.
inline bool have_one_formula(const AttentionOptions& options, const Report& a, const Report& b) {
  return (options.near == 0 && options.sinks == 0) || a.repaired_rows + b.repaired_rows == 0;
}

/// The options of a call that describe its sequences; most fit its arrays.
class Call {
 public:
  Call(Input& input, Index batch, Index n_q, Index n_k) {
    batch = std::max<Index>(batch, 0), n_q = std::max<Index>(n_q, 0), n_k = std::max<Index>(n_k, 0);
    if (input.flag()) {
      m_mask.resize(std::max<Index>(input.size_near(batch * n_k), 0));
      for (Index j = 0, state = input.number(1, 255); j < m_mask.size(); ++j, state = state * 5 % 257)
        m_mask[j] = state < 200;
    }
    if (input.flag()) {
      if (input.flag()) {
        m_cumulative = cumulative(input, n_q, input.number(1, 6));
        if (n_q != n_k || input.flag())
          m_key_cumulative = cumulative(input, n_k, input.size_near(static_cast<Index>(m_cumulative.size()) - 1));
      } else {
        for (Index b = input.size_near(batch); b > 0; --b) m_lengths.push_back(input.size_near(input.number(0, n_k)));
      }
    }
    m_options = {.key_mask = {m_mask.data(), static_cast<std::size_t>(m_mask.size())},
                 .lengths = m_lengths,
                 .cumulative_lengths = m_cumulative,
                 .key_cumulative_lengths = m_key_cumulative,
                 .offset = input.offset(),
                 .tolerance = input.tolerance(),
                 .report = &m_report};
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const CallOptions& options() const { return m_options; }
  const Report& report() const { return m_report; }

 private:
  // 0, ..., n, rising, and now and then not
  static std::vector<Index> cumulative(Input& input, Index n, Index sequences) {
    std::vector<Index> ends{0};
    for (Index s = 1; s < sequences; ++s) ends.push_back(input.number(0, n));
    std::sort(ends.begin(), ends.end());
    ends.push_back(input.size_near(n));
    return ends;
  }

  Eigen::Array<bool, Eigen::Dynamic, 1> m_mask;
  std::vector<Index> m_lengths, m_cumulative, m_key_cumulative;
  Report m_report;
  CallOptions m_options;
};

}  // namespace nprf::fuzz
