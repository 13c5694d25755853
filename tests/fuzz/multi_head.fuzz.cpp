// SPDX-License-Identifier: MIT
//
// Many heads: whatever views, maps, positions, options and numbers come, a call writes all of y and nothing beside it,
// or throws InvalidArgument; forward gives the same bits as the call; what is finite and moderate stays finite.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <variant>
#include <vector>

#include "fuzz/check.hpp"
#include "fuzz/input.hpp"

namespace nprf::fuzz {

namespace {

// [batch, heads, tokens, channels], with no room to spare
template <Real T>
class Array {
 public:
  Array(Input& input, Index batch, Index heads, Index tokens, Index channels)
      : m_batch(input.size_near(batch)),
        m_heads(input.size_near(heads)),
        m_tokens(input.size_near(tokens)),
        m_channels(input.size_near(channels)) {
    if (std::min({m_batch, m_heads, m_tokens, m_channels}) < 0) return;
    m_values.resize(static_cast<std::size_t>(m_batch * m_heads * m_tokens * m_channels));
    input.fill(std::span<T>(m_values));
  }

  HeadsView<T> view() { return {m_values.data(), m_batch, m_heads, m_tokens, m_channels}; }
  HeadsView<const T> view() const { return {m_values.data(), m_batch, m_heads, m_tokens, m_channels}; }

  void unwrite() { std::fill(m_values.begin(), m_values.end(), std::numeric_limits<T>::quiet_NaN()); }
  bool all_finite() const {
    return std::all_of(m_values.begin(), m_values.end(), [](T x) { return std::isfinite(x); });
  }
  double largest() const {
    double most = 0;
    for (const T x : m_values) most = std::max(most, std::abs(static_cast<double>(x)));
    return most;
  }
  friend double distance(const Array& a, const Array& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.m_values.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(a.m_values[i]) - static_cast<double>(b.m_values[i])));
    return most;
  }
  friend bool same_bits(const Array& a, const Array& b) {
    return a.m_values.empty() || std::memcmp(a.m_values.data(), b.m_values.data(), a.m_values.size() * sizeof(T)) == 0;
  }

 private:
  Index m_batch, m_heads, m_tokens, m_channels;
  std::vector<T> m_values;
};

template <class F, class P>
void attend(Input& input, const MultiHeadAttention<F, P>& attention, Index batch, Index heads) {
  using T = typename F::Scalar;
  const Index d = attention.features()[0].input_dim(), d_v = input.up_to(5);
  Index n_q = input.size(64), n_k = input.flag() ? n_q : input.size(64);
  if constexpr (PlacedPosition<P>) n_q = n_k = attention.positions()[0].tokens();
  const Array<T> q(input, batch, heads, n_q, d), k(input, batch, heads, n_k, d), v(input, batch, heads, n_k, d_v);
  Array<T> y(input, batch, heads, n_q, d_v);
  const Call call(input, batch, n_q, n_k);

  y.unwrite();
  attention(q.view(), k.view(), v.view(), y.view(), call.options());
  const Report report = call.report();
  const bool stays_finite = input.tame() && is_positive<F>() && report.indefinite_rows == 0;
  check(!stays_finite || y.all_finite(), "y of moderate numbers is written and finite");

  const Array<T> once = y;
  Saved<T> saved;
  y.unwrite();
  attention.forward(q.view(), k.view(), v.view(), y.view(), saved, call.options());
  const Report& after = call.report();
  if (attention.options().engine != Engine::automatic && report.repaired_rows + after.repaired_rows == 0)
    check(same_bits(y, once), "forward gives the bits of the call");
  if (stays_finite && have_one_formula(attention.options(), report, after))
    check(!(distance(y, once) > (report.error_bound + after.error_bound) * v.largest()),
          "forward and call are as near to each other as both bounds allow");
  if constexpr (LearnedPosition<P>) {
    const Array<T> dy(input, batch, heads, n_q, d_v);
    Array<T> dq = q, dk = k, dv = v;
    dq.unwrite(), dk.unwrite(), dv.unwrite();
    std::vector<Matrix<T>> dbias, dextra;
    attention.backward(saved, dy.view(), dq.view(), dk.view(), dv.view(), dbias, &dextra);
    check(static_cast<Index>(dbias.size()) == y.view().heads && dextra.size() == dbias.size(), "a gradient a head");
    check(!stays_finite || (dq.all_finite() && dk.all_finite() && dv.all_finite()),
          "gradients of moderate numbers are written and finite");
  }
}

template <Real T>
void attend(Input& input) {
  const AttentionOptions options = input.options();
  const Index batch = input.up_to(3), heads = input.up_to(3), d = input.up_to(6);
  const AnyMap<T> map = input.map<T>(d);
  const AnyPosition<T> position = input.position<T>(options);
  const auto some = [&]<class X>(const X& x) {
    return std::vector<X>(static_cast<std::size_t>(std::max<Index>(input.size_near(heads), 0)), x);
  };
  std::visit(
      [&](const auto& f, const auto& p) {
        switch (input.number(0, 3)) {
          case 0: return attend(input, MultiHeadAttention(f, p, options), batch, heads);
          case 1: return attend(input, MultiHeadAttention(some(f), p, options), batch, heads);
          case 2: return attend(input, MultiHeadAttention(f, some(p), options), batch, heads);
          default: return attend(input, MultiHeadAttention(some(f), some(p), options), batch, heads);
        }
      },
      map, position);
}

}  // namespace

}  // namespace nprf::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nprf::fuzz::Input input(data, size);
  try {
    if (input.flag())
      nprf::fuzz::attend<float>(input);
    else
      nprf::fuzz::attend<double>(input);
  } catch (const nprf::InvalidArgument&) {
  }
  return 0;
}
