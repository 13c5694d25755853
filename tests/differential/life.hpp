// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "differential/case.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/options.hpp"

namespace nprf::test::differential {

/// One call of a decoder. Numbers that are too large become the largest possible when the call is made.
struct Event {
  enum class Kind { prefill, step, rollback, any_rollback, reorder, fork, save_and_load, move, reset };

  Kind kind = Kind::step;
  std::vector<Index> tokens;     // prefill and step: of each sequence
  Index sequence = 0;            // rollback, fork and reset: which
  Index count = 0;               // rollback: of tokens; any_rollback: of as many, which may be refused
  Index from = 0;                // fork: of which it becomes a copy
  std::vector<Index> sequences;  // reorder: of which each becomes a copy

  bool adds_tokens() const { return kind == Kind::prefill || kind == Kind::step; }
};

/// A decoder and what is done with it.
struct Life {
  /// The attention, and the tokens that are appended, in turn: its queries, keys and values.
  Case of;
  Index kv_heads = 1;
  DecoderOptions options;
  Index longest = 1;  // the most tokens that a sequence gets
  std::vector<Event> events;

  std::string name() const {
    std::ostringstream out;
    out << of.name() << "; heads of keys " << kv_heads << ", sequences " << options.batch << ", rollback "
        << options.rollback << ", most tokens " << options.most_tokens << "; up to " << longest << " tokens:";
    for (const Event& each : events) add(out, each);
    return out.str();
  }

 private:
  static void add(std::ostringstream& out, const Event& x) {
    static const char* const kinds[] = {"prefill", "step",          "rollback", "any rollback", "reorder",
                                        "fork",    "save and load", "move",     "reset"};
    using What = Event::Kind;
    out << " " << kinds[static_cast<int>(x.kind)];
    if (x.kind == What::rollback || x.kind == What::any_rollback) out << " " << x.sequence << " by " << x.count;
    if (x.kind == What::fork) out << " " << x.from << " to " << x.sequence;
    if (x.kind == What::reset) out << " " << x.sequence;
    for (const auto* all : {&x.tokens, &x.sequences})
      for (const Index each : *all) out << " " << each;
    out << ",";
  }
};

}  // namespace nprf::test::differential
