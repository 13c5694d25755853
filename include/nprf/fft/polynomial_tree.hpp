// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/core/buffer.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/radix.hpp"

namespace nprf::fft {

/// Products of real polynomials modulo z^2L + 1, lane_count at a time, by complex transforms of length L.
///
/// Such a polynomial x is known by its residue modulo z^L - i, x_j + i x_(j+L) for j < L: the right-angle convolution
/// of Crandall and Fagin (1994). A signal of at most L real numbers is its own residue, and one of two times L numbers
/// is the real and the imaginary part of L: no two signals ever share a transform.
///
/// A polynomial modulo z^n - e^(2 pi i a) splits into its residues modulo z^(n/R) - e^(2 pi i (a + k) / R), k < R: one
/// pass over the data with constants that belong to the block, not to the element. L such steps lead to the values at
/// the roots, which are multiplied by those of the other factor, and back. A block is split, its parts are done one
/// after the other, and it is joined again, so that what fits into a cache is worked on there; the last 8 points are
/// split, multiplied and joined in registers. The way back has the twiddle factors of a decimation in time, which are
/// the same for all blocks of a size, and leaves one factor e^(-pi i j / 2L) to the caller.
///
/// Immutable; threads share it.
template <Real T>
class PolynomialTree {
 public:
  using Z = ComplexLanes<T>;
  static constexpr Index leaf = 8;

  /// The cheapest length >= n, of the form 8 2^a 3^b 5^c.
  static Index length_for(Index n) {
    Index best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (Index fives = leaf; fives < 2 * n + 2 * leaf; fives *= 5)
      for (Index threes = fives; threes < 2 * n + 2 * leaf; threes *= 3) {
        Index length = threes;
        while (length < n) length *= 2;
        if (const double cost = static_cast<double>(length) * steps(length); cost < least) least = cost, best = length;
      }
    return best;
  }

  /// Of a length of that form. Throws InvalidArgument for another.
  explicit PolynomialTree(Index length) : m_length(length) {
    Index rest = length > 0 && length % leaf == 0 ? length / leaf : 0;
    for (const Index factor : {2, 3, 5})
      while (rest > 0 && rest % factor == 0) rest /= factor;
    require(rest == 1, "length: expected 8 2^a 3^b 5^c, got ", length);
    Index blocks = 1;
    for_each_radix(length, [&](int radix) {
      m_levels.push_back({radix, blocks, length / blocks / radix, 0, 0});
      blocks *= radix;
    });
    Index size = 0;
    const auto place = [&size](Index count) {
      const Index at = size;
      size += count;
      return at;
    };
    for (Level& level : m_levels) {
      level.back = place(level.part * constants(level.radix));
      level.forth = place(level.blocks * constants(level.radix));
    }
    m_leaf_forth = place(blocks * constants(leaf));
    m_twist = place(2 * length);
    m_table = Buffer<T>(size);
    T* table = m_table.data();
    for (const Level& level : m_levels)
      for (Index j = 0; j < level.part; ++j)
        write_constants(Step::join, level.radix, Turn{-j, level.part * level.radix},
                        table + level.back + j * constants(level.radix));
    std::vector<Turn> turns{{1, 4}};
    for (const Level& level : m_levels) turns = write_level(level.radix, turns, table + level.forth);
    write_level(leaf, turns, table + m_leaf_forth);
    for (Index j = 0; j < length; ++j) {
      const UnitRoot w = UnitRoot::of({j, 4 * length});
      table[m_twist + 2 * j] = static_cast<T>(w.re);
      table[m_twist + 2 * j + 1] = static_cast<T>(w.im);
    }
  }

  Index length() const { return m_length; }

  /// (cos, sin)(pi j / 2L) at 2 j: the coefficient y_j is e^(-pi i j / 2L) z_j / L.
  const T* twist() const { return m_table.data() + m_twist; }

  /// The values of the residue z_j = load(j), j < L, at the roots of i, into x (L), in the tree's own order.
  template <class Load>
  void values(Load&& load, Z* x) const {
    transform<true, false>(
        Fixed<1>{{x}}, [&](auto, Index j) { return load(j); }, [](Index, Z(&)[1][leaf]) {},
        [](auto, Index, const Z&) {});
  }

  /// The way back: store(j, z) with L times the twisted coefficient j, from z = load(k, l) at place 8 k + l of values'
  /// order, l < 8. x (L) is scratch.
  template <class Load, class Store>
  void coefficients(Z* x, Load&& load, Store&& store) const {
    transform<false, true>(
        Fixed<1>{{x}}, [](auto, Index) { return Z{}; },
        [&](Index k, Z(&z)[1][leaf]) {
          for (Index l = 0; l < leaf; ++l) z[0][l] = load(k, l);
        },
        [&](auto, Index j, const Z& z) { store(j, z); });
  }

  /// Both ways at once, for S signals at a time: the real numbers load(s, j) are split down to values, at_leaf(k, z)
  /// may change z[s][0..7], values 8 k .. 8 k + 7, and store(s, j, z) gets L times the twisted coefficients, one at a
  /// time or, if it takes z[8], those from j on, j a multiple of 8. s is a constant of the type, x[s] (L) is scratch.
  template <std::size_t S, class Load, class Leaf, class Store>
  void convolve(const std::array<Z*, S>& x, Load&& load, Leaf&& at_leaf, Store&& store) const {
    transform<true, true>(Fixed<S>{x}, load, at_leaf, store);
  }

  /// The same for `count` <= most signals, signal s at x + s stride: s is a number, and at_leaf(k, z) finds z[most].
  template <std::size_t most, class Load, class Leaf, class Store>
  void convolve(Z* x, Index stride, Index count, Load&& load, Leaf&& at_leaf, Store&& store) const {
    transform<true, true>(UpTo<most>{x, stride, count}, load, at_leaf, store);
  }

  /// The tree of a length, shared by all callers of the process.
  static std::shared_ptr<const PolynomialTree> shared(Index length) {
    constexpr std::size_t most = 1024;  // a bound on what many different lengths can pile up
    static std::mutex mutex;
    static std::map<Index, std::shared_ptr<const PolynomialTree>> trees;
    {
      const std::scoped_lock lock(mutex);
      if (const auto found = trees.find(length); found != trees.end()) return found->second;
    }
    // built while others go on: of two that build the same the first one's stays
    auto tree = std::make_shared<const PolynomialTree>(length);
    const std::scoped_lock lock(mutex);
    if (trees.size() == most) trees.clear();
    return trees.emplace(length, std::move(tree)).first->second;
  }

 private:
  // one split of every block into `radix` parts
  struct Level {
    int radix;
    Index blocks, part;  // how many, and the points of a part
    Index back, forth;   // its tables' places: by element, and by block
  };

  // eights first: passes over the most memory do the most. Eight complex numbers need more than 16 registers
  template <class Use>
  static void for_each_radix(Index length, Use&& use) {
    Index rest = length / leaf;
    int twos = 0;
    for (; rest % 2 == 0; rest /= 2) ++twos;
    if (vector_registers >= 32)
      for (; twos > 4 || twos == 3; twos -= 3) use(8);
    for (; rest % 5 == 0; rest /= 5) use(5);
    for (; rest % 3 == 0; rest /= 3) use(3);
    for (; twos > 1; twos -= 2) use(4);
    if (twos == 1) use(2);
  }

  // the signals of one call: as many as the type says, or up to so many
  template <std::size_t S>
  struct Fixed {
    static constexpr std::size_t most = S;

    template <class Use>
    void for_each(Use&& use) const {
      [&]<std::size_t... s>(std::index_sequence<s...>) {
        (use(std::integral_constant<std::size_t, s>(), of[s]), ...);
      }(std::make_index_sequence<S>());
    }
    Fixed from(Index j) const {
      Fixed part;
      for (std::size_t s = 0; s < S; ++s) part.of[s] = of[s] + j;
      return part;
    }

    std::array<Z*, S> of;
  };
  template <std::size_t S>
  struct UpTo {
    static constexpr std::size_t most = S;

    template <class Use>
    void for_each(Use&& use) const {
      for (Index s = 0; s < count; ++s) use(s, first + s * stride);
    }
    UpTo from(Index j) const { return {first + j, stride, count}; }

    Z* first;
    Index stride, count;
  };

  template <bool forth, bool back, class Signals, class Load, class Leaf, class Store>
  void transform(const Signals& x, Load&& load, Leaf&& at_leaf, Store&& store) const {
    if (m_levels.empty()) {
      if constexpr (forth)
        x.for_each([&](auto s, Z* z) {
          for (Index j = 0; j < leaf; ++j) z[j] = complex(load(s, j));
        });
      pass_leaf<forth, back>(x, 0, at_leaf);
      if constexpr (back)
        x.for_each([&](auto s, const Z* z) {
          Z eight[leaf];
          std::copy_n(z, leaf, eight);
          hand_over(eight, s, 0, store);
        });
      return;
    }
    const Level& top = m_levels.front();
    const T* table = m_table.data() + top.forth;
    if constexpr (forth)
      x.for_each([&](auto s, Z* z) {
        split(
            top, table, [&](Index j) { return load(s, j); }, z);
      });
    parts<forth, back>(0, x, 0, at_leaf);
    if constexpr (back)
      x.for_each([&](auto s, const Z* z) {
        if constexpr (takes_eight<Store, decltype(s)>)
          join_eights(top, z, [&](Index j, const Z(&eight)[leaf]) { store(s, j, eight); });
        else
          join(top, z, [&](Index j, const Z& value) { store(s, j, value); });
      });
  }

  template <class Store, class Signal>
  static constexpr bool takes_eight = std::is_invocable_v<Store&, Signal, Index, const Z (&)[leaf]>;

  template <class Signal, class Store>
  static void hand_over(const Z (&eight)[leaf], Signal s, Index j, Store& store) {
    if constexpr (takes_eight<Store, Signal>)
      store(s, j, eight);
    else
      for (int l = 0; l < leaf; ++l) store(s, j + l, eight[l]);
  }

  // what a point costs, in multiplications and additions of lanes
  static double steps(Index length) {
    double sum = 0;
    for_each_radix(length, [&](int radix) {
      sum += radix == 8 ? 11 : radix == 5 ? 14 : radix == 3 ? 11 : radix == 4 ? 8 : 5;
    });
    return sum + 9;
  }

  // the next level's turns, in the order in which a split stores its parts
  static std::vector<Turn> write_level(int radix, const std::vector<Turn>& turns, T* table) {
    std::vector<Turn> next;
    next.reserve(turns.size() * static_cast<std::size_t>(radix));
    for (const Turn& a : turns) {
      write_constants(Step::split, radix, Turn{a.part, radix * a.whole}, table);
      table += constants(radix);
      for (int k = 0; k < radix; ++k)
        next.push_back({a.part + part_order(radix, k) * a.whole, radix * a.whole});  // (a + part_order) / R
    }
    return next;
  }

  static Z complex(const Z& z) { return z; }
  static Z complex(const fft::Lanes<T>& x) { return {x, fft::Lanes<T>{}}; }

  // of complex or of real numbers
  template <class Load>
  static void split(const Level& level, const T* table, Load&& load, Z* x) {
    with_radix(level.radix, [&](auto radix) {
      for (Index j = 0; j < level.part; ++j) {
        Z z[radix];
        if constexpr (std::is_same_v<decltype(load(j)), Z>) {
          for (int k = 0; k < radix; ++k) z[k] = load(j + k * level.part);
          split_parts<radix>(z, table);
        } else {
          fft::Lanes<T> real[radix];
          for (int k = 0; k < radix; ++k) real[k] = load(j + k * level.part);
          split_parts<radix>(real, z, table);
        }
        for (int k = 0; k < radix; ++k) x[j + k * level.part] = z[k];
      }
    });
  }

  template <class Store>
  void join(const Level& level, const Z* x, Store&& store) const {
    with_radix(level.radix, [&](auto radix) {
      const T* table = m_table.data() + level.back;
      for (Index j = 0; j < level.part; ++j, table += constants(radix)) {
        Z z[radix];
        for (int k = 0; k < radix; ++k) z[k] = x[j + k * level.part];
        join_parts<radix>(z, table);
        for (int k = 0; k < radix; ++k) store(j + k * level.part, z[k]);
      }
    });
  }

  // the same, eight at a time
  template <class Store>
  void join_eights(const Level& level, const Z* x, Store&& store) const {
    with_radix(level.radix, [&](auto radix) {
      const T* table = m_table.data() + level.back;
      for (Index j = 0; j < level.part; j += leaf) {
        Z eights[radix][leaf];
        for (Index l = 0; l < leaf; ++l, table += constants(radix)) {
          Z z[radix];
          for (int k = 0; k < radix; ++k) z[k] = x[j + l + k * level.part];
          join_parts<radix>(z, table);
          for (int k = 0; k < radix; ++k) eights[k][l] = z[k];
        }
        for (int k = 0; k < radix; ++k) store(j + k * level.part, eights[k]);
      }
    });
  }

  // the parts of a block that is split
  template <bool forth, bool back, class Signals, class Leaf>
  void parts(std::size_t level, const Signals& x, Index block, Leaf& at_leaf) const {
    const Level& at = m_levels[level];
    for (int k = 0; k < at.radix; ++k)
      whole<forth, back>(level + 1, x.from(k * at.part), block * at.radix + k, at_leaf);
  }

  template <bool forth, bool back, class Signals, class Leaf>
  void whole(std::size_t level, const Signals& x, Index block, Leaf& at_leaf) const {
    if (level == m_levels.size()) {
      pass_leaf<forth, back>(x, block, at_leaf);
      return;
    }
    const Level& at = m_levels[level];
    const T* table = m_table.data() + at.forth + block * constants(at.radix);
    if constexpr (forth)
      x.for_each([&](auto, Z* z) {
        split(
            at, table, [z](Index j) { return z[j]; }, z);
      });
    parts<forth, back>(level, x, block, at_leaf);
    if constexpr (back) x.for_each([&](auto, Z* z) { join(at, z, [z](Index j, const Z& value) { z[j] = value; }); });
  }

  template <bool forth, bool back, class Signals, class Leaf>
  NPRF_ALWAYS_INLINE void pass_leaf(const Signals& x, Index block, Leaf& at_leaf) const {
    Z z[Signals::most][leaf];
    if constexpr (forth)
      x.for_each([&](auto s, const Z* from) {
        Z values[leaf];  // in registers, which z cannot be where s is a number
        for (int k = 0; k < leaf; ++k) values[k] = from[k];
        split_parts<leaf>(values, m_table.data() + m_leaf_forth + block * constants(leaf));
        for (int k = 0; k < leaf; ++k) z[s][k] = values[k];
      });
    at_leaf(block, z);
    x.for_each([&](auto s, Z* to) {
      Z values[leaf];
      for (int k = 0; k < leaf; ++k) values[k] = z[s][k];
      if constexpr (back) join_leaf(values);
      for (int k = 0; k < leaf; ++k) to[k] = values[k];
    });
  }

  Index m_length;
  std::vector<Level> m_levels;
  Index m_leaf_forth, m_twist;
  Buffer<T> m_table;
};

}  // namespace nprf::fft
