// SPDX-License-Identifier: MIT
#include "nprf/decoder/sequence_states.hpp"

#include <sstream>
#include <vector>

#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_sequence_states {

namespace {

using T = float;
constexpr Index d = 3, d_v = 2, batch = 4;

struct Model {
  PositiveFeatures<T> map = orf<T>(d, 5, 1);
  RelativePosition<T> position{random_table<T>(6, 2)};
  AttentionOptions options{.direction = Direction::causal};

  SequenceStates<T> states(std::size_t models, Index of_batch = batch) const {
    const StepModel<T> one(FeatureMapView<T>(map), PositionView<T>(position), options, 2);
    return {std::vector(models, one), of_batch};
  }
};

// appends tokens to a sequence: their first key is `mark`
void append(SequenceStates<T>& states, Index sequence, Index tokens) {
  Workspace scratch;
  const Matrix<T> x = normal<T>(1, d, static_cast<std::uint64_t>(10 + sequence));
  states.reserve(sequence, states.tokens(sequence) + tokens);
  for (Index t = 0; t < tokens; ++t)
    for (Index s = 0; s < states.count(); ++s) {
      const StepModel<T>& model = states.model(s);
      states(sequence, s).append(model, model.features({x.data(), 1}, {}, scratch)(0), x.data(), scratch);
    }
}

std::vector<Index> tokens_of(const SequenceStates<T>& states) {
  std::vector<Index> all;
  for (Index b = 0; b < states.batch(); ++b) all.push_back(states.tokens(b));
  return all;
}

// what was saved, with its head
std::string saved(const SequenceStates<T>& states) {
  StateWriter out;
  states.save(out);
  std::ostringstream stream;
  out.write(stream);
  return stream.str();
}

}  // namespace

TEST_CASE("sequence states: one for a head of keys, or of queries with models of their own", "[decoder]") {
  const Model model;
  SequenceStates<T> one = model.states(1), six = model.states(6);
  CHECK(one.count() == 0);
  CHECK(one.tokens(0) == 0);
  CHECK(one.bytes() == 0);
  one.make({6, 2, d_v}), six.make({6, 2, d_v});
  CHECK(one.count() == 2);
  CHECK(six.count() == 6);
  CHECK(one.shape().group() == 3);
  CHECK(six.bytes() == 3 * one.bytes());
}

TEST_CASE("sequence states: reorder and copy", "[decoder]") {
  const Model model;
  SequenceStates<T> states = model.states(1);
  states.make({2, 2, d_v});
  for (Index b = 0; b < batch; ++b) append(states, b, 10 * (b + 1));
  using Tokens = std::vector<Index>;
  CHECK(tokens_of(states) == Tokens{10, 20, 30, 40});
  states.reorder(Tokens{3, 2, 1, 0});
  CHECK(tokens_of(states) == Tokens{40, 30, 20, 10});
  states.reorder(Tokens{1, 1, 3, 1});
  CHECK(tokens_of(states) == Tokens{30, 30, 10, 30});
  append(states, 1, 1);  // copies are independent
  CHECK(tokens_of(states) == Tokens{30, 31, 10, 30});
  states.reorder(Tokens{0, 1, 2, 3});
  CHECK(tokens_of(states) == Tokens{30, 31, 10, 30});
  states.copy(2, 0);
  states.copy(1, 1);
  CHECK(tokens_of(states) == Tokens{10, 31, 10, 30});
  states.clear(3);
  CHECK(tokens_of(states) == Tokens{10, 31, 10, 0});
  CHECK(states.can_roll_back_to(1, 29));
  CHECK_FALSE(states.can_roll_back_to(1, 28));
  states.roll_back_to(1, 29);
  CHECK(tokens_of(states) == Tokens{10, 29, 10, 0});
  // more sequences, and fewer
  const std::size_t bytes = states.bytes();
  states.reorder(Tokens{1, 0, 1, 3, 2, 1});
  CHECK(tokens_of(states) == Tokens{29, 10, 29, 0, 10, 29});
  append(states, 2, 1);
  CHECK(tokens_of(states) == Tokens{29, 10, 30, 0, 10, 29});
  CHECK(states.bytes() > bytes);
  states.reorder(Tokens{4, 3});
  CHECK(tokens_of(states) == Tokens{10, 0});
  CHECK(states.bytes() < bytes);
  states.reorder(Tokens{0, 0, 1});
  append(states, 2, 5);
  CHECK(tokens_of(states) == Tokens{10, 10, 5});
}

TEST_CASE("sequence states: files of other shapes", "[decoder]") {
  const Model model;
  SequenceStates<T> states = model.states(1);
  states.make({4, 2, d_v});
  append(states, 1, 12);
  states.reorder(std::vector<Index>{1, 0, 2, 3});
  const std::string file = saved(states);
  const auto load = [&](SequenceStates<T>& into, const std::string& from) {
    std::istringstream stream(from);
    StateReader in(stream);
    into.load(in);
  };
  SequenceStates<T> same = model.states(1), two = model.states(2), smaller = model.states(1, 3);
  load(same, file);
  CHECK(saved(same) == file);
  CHECK(tokens_of(same) == std::vector<Index>{12, 0, 0, 0});
  check_invalid([&] { load(two, file); }, {"state", "2 feature maps", "got 1"});
  check_invalid([&] { load(smaller, file); }, {"state", "3 sequences", "got 4"});
  // sizes that no such file has: heads are the fourth number after the head of 32 bytes
  for (const Index heads : {Index{-1}, Index{0}, Index{3}, Index{1} << 60}) {
    StateWriter out;
    for (const Index size : {Index{sizeof(T)}, batch, Index{1}, heads, Index{2}, d_v}) out(size);
    Fingerprint<T>(states.model(0)).save(out);
    std::stringstream stream;
    out.write(stream);
    StateReader in(stream);
    check_invalid([&] { same.load(in); }, {"state", "heads"});
  }
  CHECK(saved(same) == file);
}

}  // namespace nprf::test::decoder_sequence_states
