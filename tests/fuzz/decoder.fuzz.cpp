// SPDX-License-Identifier: MIT
//
// Files of a decoder's states whose content was changed, with the checksum of the new content: such a file is refused
// and changes nothing, or it is loaded as a state that the decoder can go on from.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz/check.hpp"
#include "fuzz/input.hpp"
#include "nprf/decoder/state_stream.hpp"
#include "nprf/nprf.hpp"

namespace nprf::fuzz {

namespace {

using T = float;
constexpr Index d = 4, d_v = 3, heads = 2, batch = 2, tokens = 60;

/// q, k, v and y of `count` tokens.
struct Tokens {
  explicit Tokens(Index count) : n(count), q(batch * heads * n, d), k(q), v(batch * heads * n, d_v), y(v) {
    for (Matrix<T>* x : {&q, &k, &v})
      for (Index i = 0; i < x->size(); ++i) x->data()[i] = std::sin(static_cast<T>(i + x->cols()));
  }
  HeadsView<T> view(Matrix<T>& x) const { return {x.data(), batch, heads, n, x.cols()}; }
  void prefill(Decoder<T>& decoder) { decoder.prefill(view(q), view(k), view(v), view(y)); }
  void step(Decoder<T>& decoder) { decoder.step(view(q), view(k), view(v), view(y)); }

  Index n;
  Matrix<T> q, k, v, y;
};

std::string saved(const Decoder<T>& decoder) {
  std::ostringstream out;
  decoder.save(out);
  return out.str();
}

/// A decoder, and the content of a file of its states.
struct Kind {
  template <class F>
  Kind(const F& map, const AnyBias<T>& position, Index near, Index sinks, const DecoderOptions& options)
      : make([=] {
          return Decoder<T>(MultiHeadAttention<F, AnyBias<T>>(
                                map, position, {.direction = Direction::causal, .near = near, .sinks = sinks}),
                            options);
        }) {
    Decoder<T> decoder = make();
    Tokens(tokens).prefill(decoder);
    content = saved(decoder).substr(sizeof(detail::StateFileHead));
  }

  std::function<Decoder<T>()> make;
  std::string content;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    const auto map = orf<T>(d, 2, 1);
    const DecoderOptions options{.batch = batch, .rollback = 2};
    Vector<T> table(2 * 100 + 1);
    for (Index l = 0; l < table.size(); ++l) table[l] = std::cos(static_cast<T>(l));
    const AnyBias<T> alibi{AlibiPosition<T>(T(0.1)).bias()}, dense{RelativePosition<T>(table).bias()},
        t5{t5_position<T>(table.head(8), Direction::causal, 14).bias()};
    std::vector<Kind> made;
    made.emplace_back(map, alibi, 0, 0, options);
    made.emplace_back(map, t5, 5, 2, options);
    constexpr Index most = std::numeric_limits<Index>::max();
    made.emplace_back(map, t5, most, most, DecoderOptions{.batch = batch, .rollback = Index{1} << 24});
    made.emplace_back(TaylorFeatures<T>({.input_dim = d}), t5, 3, 0, options);
    made.emplace_back(map, dense, 0, 0, options);
    Vector<T> smooth(2 * 400 - 1);
    for (Index l = 0; l < smooth.size(); ++l) smooth[l] = std::cos(T(0.01) * static_cast<T>(l - 399));
    made.emplace_back(map, AnyBias<T>{RelativePosition<T>(smooth).bias()}, 0, 0,
                      DecoderOptions{.batch = batch, .rollback = 2, .most_tokens = 400});
    return made;
  }();
  return all;
}

std::string file_of(const std::string& content) {
  detail::StateFileHead head;
  head.size = content.size();
  head.checksum = detail::StateFileHead::checksum_of(content);
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + content;
}

// numbers and bytes at places of the input's choice
void change(Input& input, std::string& content) {
  for (Index changes = input.number(1, 8); changes > 0; --changes) {
    // the heads of states are near the beginning, or anywhere
    const Index size = static_cast<Index>(content.size()), most = input.flag() ? std::min<Index>(size, 400) : size;
    const auto at = static_cast<std::size_t>(input.number(0, std::max<Index>(most - 1, 0)));
    const auto put = [&](auto x) { std::memcpy(content.data() + at, &x, std::min(sizeof(x), content.size() - at)); };
    switch (input.number(0, 4)) {
      case 0: put(static_cast<std::uint8_t>(input.number(0, 255))); break;
      case 1: put(input.number(-3, 100)); break;
      case 2: put(input.number(std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max())); break;
      case 3: put(input.scalar<T>()); break;
      default: put(input.scalar<double>()); break;
    }
  }
  if (input.number(0, 15) == 15) content.resize(static_cast<std::size_t>(input.number(0, 400)));
}

void run(Input& input) {
  const Kind& kind = kinds()[static_cast<std::size_t>(input.number(0, static_cast<Index>(kinds().size()) - 1))];
  std::string content = kind.content;
  change(input, content);
  Decoder<T> decoder = kind.make();
  Tokens(3).prefill(decoder);
  const std::string before = saved(decoder);
  std::istringstream in(file_of(content));
  try {
    decoder.load(in);
  } catch (const InvalidArgument&) {
    check(saved(decoder) == before, "a file that is refused changes nothing");
    return;
  }
  Tokens next(3);
  try {
    next.step(decoder);
    decoder.rollback(0, 1);
    decoder.reorder(std::vector<Index>{1, 1});
    next.step(decoder);
  } catch (const InvalidArgument&) {  // the file may be of another number of heads or channels
  }
  const std::string after = saved(decoder);
  Decoder<T> other = kind.make();
  std::istringstream again(after);
  other.load(again);
  check(saved(other) == after, "what was saved is loaded as the same");
}

}  // namespace

}  // namespace nprf::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nprf::fuzz::Input input(data, size);
  nprf::fuzz::run(input);
  return 0;
}
