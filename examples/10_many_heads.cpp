// SPDX-License-Identifier: MIT

// Many heads of a batch of padded sequences, on all threads, with ALiBi's bias of a different slope for each head; and
// sequences packed into one array, without padding.

#include <array>
#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>
#include <vector>

using namespace nprf;

int main() {
  // [batch, heads, tokens, channels], the last index fastest; the second sequence has 90 tokens, the rest is padding
  const Index batch = 2, heads = 4, n = 128, d = 32;
  const std::array<Index, 2> lengths{n, 90};
  const auto array = [&] { return Vector<float>(Vector<float>::Random(batch * heads * n * d)); };
  const auto view = [&](Vector<float>& x) { return HeadsView<float>{x.data(), batch, heads, n, d}; };
  Vector<float> q = array(), k = array(), v = array(), y = array();

  std::vector<AlibiPosition<float>> positions;
  for (Index h = 0; h < heads; ++h) positions.emplace_back(std::exp2(-2.0f * static_cast<float>(h + 1)));
  const MultiHeadAttention attention(orf<float>(d, 32), positions, {.direction = Direction::causal});

  // a training step: forward saves what backward needs
  Saved<float> saved;
  attention.forward(view(q), view(k), view(v), view(y), saved, {.lengths = lengths});
  Vector<float> dq = array(), dk = array(), dv = array();
  std::vector<Matrix<float>> dslope;
  attention.backward(saved, view(y), view(dq), view(dk), view(dv), dslope);
  for (Index h = 0; h < heads; ++h)
    std::printf("head %td: slope %.4f, its gradient %8.4f\n", h, positions[static_cast<std::size_t>(h)].slope(),
                dslope[static_cast<std::size_t>(h)](0, 0));
  const float padding = view(dv)(1, 0).bottomRows(n - 90).norm();
  std::printf("gradient of the padding: %g\n", padding);

  // head 0 of both sequences, one after the other in one array: without padding, and neither attends to the other
  Matrix<float> packed_q(n + 90, d), packed_k(n + 90, d), packed_v(n + 90, d);
  packed_q << view(q)(0, 0), view(q)(1, 0).topRows(90);
  packed_k << view(k)(0, 0), view(k)(1, 0).topRows(90);
  packed_v << view(v)(0, 0), view(v)(1, 0).topRows(90);
  const std::array<Index, 3> cumulative{0, n, n + 90};
  const Attention one_head(attention.features()[0], positions[0], attention.options());
  const Matrix<float> packed = one_head(packed_q, packed_k, packed_v, {.cumulative_lengths = cumulative});
  const float apart =
      (packed.topRows(n) - view(y)(0, 0)).norm() + (packed.bottomRows(90) - view(y)(1, 0).topRows(90)).norm();
  std::printf("packed and padded differ by %g\n", apart);

  return padding == 0 && apart < 1e-4f ? 0 : 1;
}
