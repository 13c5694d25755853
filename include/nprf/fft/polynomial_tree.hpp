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
/// Such a polynomial x is determined by its residue modulo z^L - i, whose coefficients are x_j + i x_(j+L), j < L. This
/// is the right-angle convolution of Crandall and Fagin (1994). A signal of at most L real numbers is its own residue.
/// The residue of a signal of 2L numbers has the first L as real and the last L as imaginary parts. So each transform
/// is of one signal only.
///
/// A split turns a polynomial modulo z^n - e^(2 pi i a) into R residues modulo z^(n/R) - e^(2 pi i (a + k) / R), where
/// k = 0..R-1. It is one pass over the data, with constants that depend on the block but not on the element. Repeated
/// splits lead to the values at the L roots, which are multiplied by those of the other factor and transformed back.
/// The transform is depth-first: a block is split, its parts are transformed one after the other, and they are joined
/// again, so that data that fits into a cache stays there. The last 8 points are split, multiplied and joined in
/// registers. The inverse has the twiddle factors of a decimation in time, which are the same for all blocks of a size.
/// Its result for coefficient j still has the factor e^(pi i j / 2L), which the caller removes (twist()).
///
/// Objects are immutable, so that threads can share them.
template <Real T>
class PolynomialTree {
 public:
  using Z = ComplexLanes<T>;
  static constexpr Index leaf = 8;  // the number of points of a leaf, a block that is transformed in registers

  /// The cheapest length >= n, of the form 8 2^a 3^b 5^c.
  static Index length_for(Index n) {
    Index best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (Index fives = leaf; fives < 2 * n + 2 * leaf; fives *= 5)
      for (Index threes = fives; threes < 2 * n + 2 * leaf; threes *= 3) {
        Index length = threes;
        while (length < n) length *= 2;
        if (const double cost = static_cast<double>(length) * point_cost(length); cost < least)
          least = cost, best = length;
      }
    return best;
  }

  /// Throws InvalidArgument unless length is 8 2^a 3^b 5^c.
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
    const auto allocate = [&size](Index count) {
      const Index at = size;
      size += count;
      return at;
    };
    for (Level& level : m_levels) {
      level.join_table = allocate(level.part * constants(level.radix));
      level.split_table = allocate(level.blocks * constants(level.radix));
    }
    m_leaf_table = allocate(blocks * constants(leaf));
    m_twist = allocate(2 * length);
    m_table = Buffer<T>(size);
    T* table = m_table.data();
    for (const Level& level : m_levels)
      for (Index j = 0; j < level.part; ++j)
        write_constants(Step::join, level.radix, Turn{-j, level.part * level.radix},
                        table + level.join_table + j * constants(level.radix));
    std::vector<Turn> turns{{1, 4}};
    for (const Level& level : m_levels) turns = write_splits(level.radix, turns, table + level.split_table);
    write_splits(leaf, turns, table + m_leaf_table);
    for (Index j = 0; j < length; ++j) {
      const UnitRoot w = UnitRoot::of({j, 4 * length});
      table[m_twist + 2 * j] = static_cast<T>(w.re);
      table[m_twist + 2 * j + 1] = static_cast<T>(w.im);
    }
  }

  Index length() const { return m_length; }

  /// The table of cos(pi j / 2L) at index 2 j and sin(pi j / 2L) at 2 j + 1, j < L. If the inverse gives z_j,
  /// coefficient j of the product is e^(-pi i j / 2L) z_j / L.
  const T* twist() const { return m_table.data() + m_twist; }

  /// Writes the values of the residue with the coefficients load(j), j < L, at the roots of z^L = i into x (L). The
  /// order of the values is that in which the splits leave them, the order of the tree.
  template <class Load>
  void values(Load&& load, Z* x) const {
    transform<true, false>(
        StaticSignals<1>{{x}}, [&](auto, Index j) { return load(j); }, [](Index, Z(&)[1][leaf]) {},
        [](auto, Index, const Z&) {});
  }

  /// As values() above, for S signals: load(s, j) gives coefficient j of signal s. The values are not written but
  /// passed to at_leaf(k, z), where z[s][0..7] are the values of signal s at 8 k .. 8 k + 7. s is as in convolve().
  /// x[s] (L) is scratch.
  template <std::size_t S, class Load, class Leaf>
  void values(const std::array<Z*, S>& x, Load&& load, Leaf&& at_leaf) const {
    transform<true, false>(StaticSignals<S>{x}, load, at_leaf, [](auto, Index, const Z&) {});
  }

  /// The inverse of values(): load(k, l), l < 8, is the value at index 8 k + l in the order of the tree. Calls store(j,
  /// z) with z = L e^(pi i j / 2L) y_j for the coefficients y_j of the residue. x (L) is scratch.
  template <class Load, class Store>
  void coefficients(Z* x, Load&& load, Store&& store) const {
    transform<false, true>(
        StaticSignals<1>{{x}}, [](auto, Index) { return Z{}; },
        [&](Index k, Z(&z)[1][leaf]) {
          for (Index l = 0; l < leaf; ++l) z[0][l] = load(k, l);
        },
        [&](auto, Index j, const Z& z) { store(j, z); });
  }

  /// values() and coefficients() in one pass, for S signals. load(s, j) gives the real coefficients of signal s.
  /// at_leaf(k, z) may change z[s][0..7], the values 8 k .. 8 k + 7 of signal s. store(s, j, z) gets for signal s the
  /// number z that store(j, z) of coefficients() gets. If store accepts an array z[8], it gets the numbers of j .. j +
  /// 7, where j is a multiple of 8. s is a std::integral_constant. x[s] (L) is scratch.
  template <std::size_t S, class Load, class Leaf, class Store>
  void convolve(const std::array<Z*, S>& x, Load&& load, Leaf&& at_leaf, Store&& store) const {
    transform<true, true>(StaticSignals<S>{x}, load, at_leaf, store);
  }

  /// convolve() for `count` <= most signals. The scratch of signal s is at x + s * stride, s is an Index, and
  /// at_leaf(k, z) gets an array z[most][8].
  template <std::size_t most, class Load, class Leaf, class Store>
  void convolve(Z* x, Index stride, Index count, Load&& load, Leaf&& at_leaf, Store&& store) const {
    transform<true, true>(DynamicSignals<most>{x, stride, count}, load, at_leaf, store);
  }

  /// The tree of a length, shared by all callers in the process.
  static std::shared_ptr<const PolynomialTree> shared(Index length) {
    constexpr std::size_t most = 1024;  // bounds the memory of programs that use many lengths
    static std::mutex mutex;
    static std::map<Index, std::shared_ptr<const PolynomialTree>> trees;
    {
      const std::scoped_lock lock(mutex);
      if (const auto found = trees.find(length); found != trees.end()) return found->second;
    }
    // built without the lock, so that other threads can continue; if two threads build the same tree, the first is kept
    auto tree = std::make_shared<const PolynomialTree>(length);
    const std::scoped_lock lock(mutex);
    if (trees.size() == most) trees.clear();
    return trees.emplace(length, std::move(tree)).first->second;
  }

 private:
  // the split of every block of one size into `radix` parts
  struct Level {
    int radix;
    Index blocks, part;             // the number of blocks; the number of points in a part
    Index join_table, split_table;  // offsets in m_table; joins have constants for each element, splits for each block
  };

  // Radix 8 first: the first levels pass over the largest blocks and should do the most work. It is used only if there
  // are more than 16 registers, because eight complex numbers do not fit into 16.
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

  // the scratch of the signals of one call: their number is known at compile time, or is at most `most`
  template <std::size_t S>
  struct StaticSignals {
    static constexpr std::size_t most = S;

    template <class Use>
    void for_each(Use&& use) const {
      [&]<std::size_t... s>(std::index_sequence<s...>) {
        (use(std::integral_constant<std::size_t, s>(), signals[s]), ...);
      }(std::make_index_sequence<S>());
    }
    StaticSignals from(Index j) const {
      StaticSignals part;
      for (std::size_t s = 0; s < S; ++s) part.signals[s] = signals[s] + j;
      return part;
    }

    std::array<Z*, S> signals;
  };
  template <std::size_t S>
  struct DynamicSignals {
    static constexpr std::size_t most = S;

    template <class Use>
    void for_each(Use&& use) const {
      for (Index s = 0; s < count; ++s) use(s, first + s * stride);
    }
    DynamicSignals from(Index j) const { return {first + j, stride, count}; }

    Z* first;
    Index stride, count;
  };

  template <bool forward, bool inverse, class Signals, class Load, class Leaf, class Store>
  void transform(const Signals& x, Load&& load, Leaf&& at_leaf, Store&& store) const {
    if (m_levels.empty()) {
      if constexpr (forward)
        x.for_each([&](auto s, Z* z) {
          for (Index j = 0; j < leaf; ++j) z[j] = complex(load(s, j));
        });
      transform_leaf<forward, inverse>(x, 0, at_leaf);
      if constexpr (inverse)
        x.for_each([&](auto s, const Z* z) {
          Z eight[leaf];
          std::copy_n(z, leaf, eight);
          store_leaf(eight, s, 0, store);
        });
      return;
    }
    const Level& top = m_levels.front();
    const T* table = m_table.data() + top.split_table;
    if constexpr (forward)
      x.for_each([&](auto s, Z* z) {
        split(
            top, table, [&](Index j) { return load(s, j); }, z);
      });
    transform_parts<forward, inverse>(0, x, 0, at_leaf);
    if constexpr (inverse)
      x.for_each([&](auto s, const Z* z) {
        if constexpr (accepts_eight<Store, decltype(s)>)
          join_eights(top, z, [&](Index j, const Z(&eight)[leaf]) { store(s, j, eight); });
        else
          join(top, z, [&](Index j, const Z& value) { store(s, j, value); });
      });
  }

  template <class Store, class Signal>
  static constexpr bool accepts_eight = std::is_invocable_v<Store&, Signal, Index, const Z (&)[leaf]>;

  template <class Signal, class Store>
  static void store_leaf(const Z (&eight)[leaf], Signal s, Index j, Store& store) {
    if constexpr (accepts_eight<Store, Signal>)
      store(s, j, eight);
    else
      for (int l = 0; l < leaf; ++l) store(s, j + l, eight[l]);
  }

  // the cost of a transform per point, in multiplications and additions of lanes
  static double point_cost(Index length) {
    double sum = 0;
    for_each_radix(length, [&](int radix) {
      sum += radix == 8 ? 11 : radix == 5 ? 14 : radix == 3 ? 11 : radix == 4 ? 8 : 5;
    });
    return sum + 9;
  }

  // Writes the constants of the splits of all blocks of a level, whose angles are `turns`. Returns the angles of the
  // blocks of the next level, in the order in which the splits store them.
  static std::vector<Turn> write_splits(int radix, const std::vector<Turn>& turns, T* table) {
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

  // splits a block; load gives complex or real numbers
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
      const T* table = m_table.data() + level.join_table;
      for (Index j = 0; j < level.part; ++j, table += constants(radix)) {
        Z z[radix];
        for (int k = 0; k < radix; ++k) z[k] = x[j + k * level.part];
        join_parts<radix>(z, table);
        for (int k = 0; k < radix; ++k) store(j + k * level.part, z[k]);
      }
    });
  }

  // split() and join() of inner levels, compiled once for all callers
  static void split_in_place(const Level& level, const T* table, Z* x) {
    split(
        level, table, [x](Index j) { return x[j]; }, x);
  }
  void join_in_place(const Level& level, Z* x) const {
    join(level, x, [x](Index j, const Z& value) { x[j] = value; });
  }

  // like join(), but stores eight elements at a time
  template <class Store>
  void join_eights(const Level& level, const Z* x, Store&& store) const {
    with_radix(level.radix, [&](auto radix) {
      const T* table = m_table.data() + level.join_table;
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

  // transforms the parts of a block that has been split
  template <bool forward, bool inverse, class Signals, class Leaf>
  void transform_parts(std::size_t level, const Signals& x, Index block, Leaf& at_leaf) const {
    const Level& at = m_levels[level];
    for (int k = 0; k < at.radix; ++k)
      transform_block<forward, inverse>(level + 1, x.from(k * at.part), block * at.radix + k, at_leaf);
  }

  template <bool forward, bool inverse, class Signals, class Leaf>
  void transform_block(std::size_t level, const Signals& x, Index block, Leaf& at_leaf) const {
    if (level == m_levels.size()) {
      transform_leaf<forward, inverse>(x, block, at_leaf);
      return;
    }
    const Level& at = m_levels[level];
    const T* table = m_table.data() + at.split_table + block * constants(at.radix);
    if constexpr (forward) x.for_each([&](auto, Z* z) { split_in_place(at, table, z); });
    transform_parts<forward, inverse>(level, x, block, at_leaf);
    if constexpr (inverse) x.for_each([&](auto, Z* z) { join_in_place(at, z); });
  }

  template <bool forward, bool inverse, class Signals, class Leaf>
  NPRF_ALWAYS_INLINE void transform_leaf(const Signals& x, Index block, Leaf& at_leaf) const {
    Z z[Signals::most][leaf];
    if constexpr (forward)
      x.for_each([&](auto s, const Z* from) {
        Z values[leaf];  // z is in memory if s is not a constant; this array is in registers
        for (int k = 0; k < leaf; ++k) values[k] = from[k];
        split_parts<leaf>(values, m_table.data() + m_leaf_table + block * constants(leaf));
        for (int k = 0; k < leaf; ++k) z[s][k] = values[k];
      });
    at_leaf(block, z);
    x.for_each([&](auto s, Z* to) {
      Z values[leaf];
      for (int k = 0; k < leaf; ++k) values[k] = z[s][k];
      if constexpr (inverse) join_leaf(values);
      for (int k = 0; k < leaf; ++k) to[k] = values[k];
    });
  }

  Index m_length;
  std::vector<Level> m_levels;
  Index m_leaf_table, m_twist;
  Buffer<T> m_table;
};

}  // namespace nprf::fft
