// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "differential/inputs.hpp"
#include "differential/softmax_rows.hpp"
#include "nprf/nprf.hpp"

namespace nprf::test::differential {

/// The results of the library for a case. Arrays are [batch, heads, tokens, channels].
template <Real T>
struct Result {
  Report report, saved_report;
  std::vector<T> y, saved_y;  // of a call, and of forward with saved data
  std::vector<T> dq, dk, dv;
  std::vector<std::vector<T>> db;  // for each head: all parameters
  double gradient_bound = -1;      // of GradientReport; -1: there is none
  std::vector<char> softmax_rows;  // [batch, heads, n_q]  those of exact softmax, by forward with saved data
};

template <Real T>
CallOptions call_options(const Inputs<T>& x, Report* report) {
  CallOptions call{.lengths = x.c.lengths,
                   .cumulative_lengths = x.c.query_ends,
                   .key_cumulative_lengths = x.c.key_ends,
                   .offset = x.c.offset,
                   .tolerance = x.c.tolerance,
                   .report = report};
  call.key_mask = {x.mask.data(), static_cast<std::size_t>(x.mask.size())};
  return call;
}

/// A type-erased attention with any map and position.
template <Real T>
class Runner {
 public:
  virtual ~Runner() = default;
  /// Only y.
  virtual std::vector<T> forward(const Inputs<T>& x, Report& report) const = 0;
  /// All results.
  virtual Result<T> run(const Inputs<T>& x) const = 0;
};

namespace detail {

template <class Matrix, class T>
void append(std::vector<T>& all, const Matrix& x) {
  for (Index i = 0; i < x.rows(); ++i)
    for (Index j = 0; j < x.cols(); ++j) all.push_back(x(i, j));
}

template <class F, class P, class T = typename F::Scalar>
class OneHead final : public Runner<T> {
 public:
  OneHead(const F& map, const P& position, const AttentionOptions& options) : m_attention(map, position, options) {}

  std::vector<T> forward(const Inputs<T>& x, Report& report) const override {
    return flat(m_attention(rows(x.q, x.c.n_q), rows(x.k, x.c.n_k), rows(x.v, x.c.n_k), call_options(x, &report)));
  }

  Result<T> run(const Inputs<T>& x) const override {
    Result<T> result;
    result.y = forward(x, result.report);
    Saved<T> saved;
    result.saved_y = flat(m_attention.forward(rows(x.q, x.c.n_q), rows(x.k, x.c.n_k), rows(x.v, x.c.n_k), saved,
                                              call_options(x, &result.saved_report)));
    result.softmax_rows = softmax_rows(saved, 1, x.c.n_q);
    const Gradients<T> g = m_attention.backward(saved, rows(x.dy, x.c.n_q));
    result.dq = flat(g.queries), result.dk = flat(g.keys), result.dv = flat(g.values);
    append(result.db.emplace_back(), g.bias);
    append(result.db.back(), g.extra);
    result.gradient_bound = g.report.error_bound;
    return result;
  }

 private:
  static Eigen::Map<const Matrix<T>> rows(const std::vector<T>& x, Index n) {
    return {x.data(), n, static_cast<Index>(x.size()) / n};
  }
  static std::vector<T> flat(const Matrix<T>& x) { return {x.data(), x.data() + x.size()}; }

  Attention<F, P> m_attention;
};

template <class F, class P, class T = typename F::Scalar>
class ManyHeads final : public Runner<T> {
 public:
  ManyHeads(const std::vector<F>& maps, const std::vector<P>& positions, const AttentionOptions& options)
      : m_attention(maps, positions, options) {}

  std::vector<T> forward(const Inputs<T>& x, Report& report) const override {
    std::vector<T> y(size(x, x.c.n_q, x.c.d_v));
    m_attention(view(x, x.q, x.c.n_q), view(x, x.k, x.c.n_k), view(x, x.v, x.c.n_k), view(x, y, x.c.n_q),
                call_options(x, &report));
    return y;
  }

  Result<T> run(const Inputs<T>& x) const override {
    Result<T> result;
    result.y = forward(x, result.report);
    result.saved_y.resize(result.y.size());
    result.dq.resize(x.q.size()), result.dk.resize(x.k.size()), result.dv.resize(x.v.size());
    Saved<T> saved;
    m_attention.forward(view(x, x.q, x.c.n_q), view(x, x.k, x.c.n_k), view(x, x.v, x.c.n_k),
                        view(x, result.saved_y, x.c.n_q), saved, call_options(x, &result.saved_report));
    result.softmax_rows = softmax_rows(saved, x.c.batch * x.c.heads, x.c.n_q);
    std::vector<Matrix<T>> dbias, dextra;
    const auto dy = view(x, x.dy, x.c.n_q);
    const auto dq = view(x, result.dq, x.c.n_q), dk = view(x, result.dk, x.c.n_k), dv = view(x, result.dv, x.c.n_k);
    GradientReport report;
    m_attention.backward(saved, dy, dq, dk, dv, dbias, &dextra, &report);
    result.gradient_bound = report.error_bound;
    for (std::size_t h = 0; h < dbias.size(); ++h) {
      append(result.db.emplace_back(), dbias[h]);
      append(result.db.back(), dextra[h]);
    }
    return result;
  }

 private:
  static std::size_t size(const Inputs<T>& x, Index n, Index channels) {
    return static_cast<std::size_t>(x.c.batch * x.c.heads * n * channels);
  }
  static HeadsView<const T> view(const Inputs<T>& x, const std::vector<T>& of, Index n) {
    return {of.data(), x.c.batch, x.c.heads, n, static_cast<Index>(of.size()) / (x.c.batch * x.c.heads * n)};
  }
  static HeadsView<T> view(const Inputs<T>& x, std::vector<T>& of, Index n) {
    return {of.data(), x.c.batch, x.c.heads, n, static_cast<Index>(of.size()) / (x.c.batch * x.c.heads * n)};
  }

  MultiHeadAttention<F, P> m_attention;
};

template <class X, class Any>
std::vector<X> of_type(const std::vector<Any>& all) {
  std::vector<X> out;
  for (const Any& x : all) out.push_back(std::get<X>(x));
  return out;
}

}  // namespace detail

/// The attention of a case with an engine.
template <Real T>
std::unique_ptr<Runner<T>> make_runner(const Inputs<T>& x, Engine engine) {
  const Case& c = x.c;
  const AttentionOptions options{c.causal ? Direction::causal : Direction::bidirectional,
                                 c.radius > 0 ? Normalization::unit(c.radius) : Normalization::none(), engine, c.near,
                                 c.sinks};
  return std::visit(
      [&]<class F, class P>(const F& map, const P& position) -> std::unique_ptr<Runner<T>> {
        if (!c.by_heads) return std::make_unique<detail::OneHead<F, P>>(map, position, options);
        return std::make_unique<detail::ManyHeads<F, P>>(detail::of_type<F>(x.maps), detail::of_type<P>(x.positions),
                                                         options);
      },
      x.maps[0], x.positions[0]);
}

// compiled once (search.cpp), since it is for all maps and positions
extern template std::unique_ptr<Runner<float>> make_runner(const Inputs<float>&, Engine);
extern template std::unique_ptr<Runner<double>> make_runner(const Inputs<double>&, Engine);

}  // namespace nprf::test::differential
