// SPDX-License-Identifier: MIT
//
// The choice of a level, and the functions that call its code. Compiled with the program's flags.

#define NPRF_IMPLEMENT 0
#include "level.hpp"

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "nprf/core/error.hpp"
#include "nprf/implementation.hpp"
#include "processor_level.h"

static_assert(EIGEN_MAX_ALIGN_BYTES == 16 && EIGEN_MALLOC_ALREADY_ALIGNED,
              "nprf::levels is for programs whose Eigen aligns to 16 bytes and calls malloc, which it does for any "
              "x86-64 processor on glibc: with -march flags or AddressSanitizer link nprf::compiled");

extern "C" {
[[gnu::visibility("hidden")]] extern const nprf::Level nprf_level_baseline, nprf_level_v3, nprf_level_v4;
}

// what the code of a level calls for malloc: Eigen's packed factors must be aligned to the level's registers
extern "C" [[gnu::visibility("hidden")]] void* nprf_level_malloc(std::size_t size) {
  constexpr std::size_t line = 64;
  return size > std::numeric_limits<std::size_t>::max() - line
             ? nullptr
             : std::aligned_alloc(line, (size + line - 1) / line * line);
}

namespace nprf {

namespace {

CpuLevel choose_level() {
  const long level_of_processor = nprf_processor_level();
  const CpuLevel best = level_of_processor >= 4   ? CpuLevel::v4
                        : level_of_processor == 3 ? CpuLevel::v3
                                                  : CpuLevel::baseline;
  const char* const variable = std::getenv("NPRF_CPU_LEVEL");
  if (!variable) return best;
  constexpr std::string_view names[] = {"baseline", "v3", "v4"};
  for (const CpuLevel level : {CpuLevel::baseline, CpuLevel::v3, CpuLevel::v4}) {
    if (variable != names[static_cast<int>(level)]) continue;
    require(level <= best, "NPRF_CPU_LEVEL: expected at most ", names[static_cast<int>(best)],
            " on this processor, got ", variable);
    return level;
  }
  throw InvalidArgument(detail::sentence("NPRF_CPU_LEVEL: expected baseline, v3 or v4, got ", variable));
}

const Level& choose_table() {
  const Level* const tables[] = {&nprf_level_baseline, &nprf_level_v3, &nprf_level_v4};
  const Level& level = *tables[static_cast<int>(cpu_level())];
  if (level.sizes != shared_sizes())
    throw std::logic_error("nprf: a class has another layout in the code of this level");
  return level;
}

template <Real T>
const LevelFunctions<T>& functions() {
  static const Level& level = choose_table();
  if constexpr (sizeof(T) == sizeof(float))
    return level.of_float;
  else
    return level.of_double;
}

}  // namespace

CpuLevel cpu_level() {
  static const CpuLevel level = choose_level();
  return level;
}

}  // namespace nprf

NPRF_FEATURE_INSTANCES(, float)
NPRF_FEATURE_INSTANCES(, double)
template class nprf::AttentionCore<float>;
template class nprf::AttentionCore<double>;
template const nprf::Matrix<double>& nprf::Batch<float>::dbias(nprf::Index) const;
template const nprf::Matrix<double>& nprf::Batch<float>::dextra(nprf::Index) const;
template const nprf::Matrix<double>& nprf::Batch<float>::dlag_vectors(nprf::Index) const;
template const nprf::Matrix<double>& nprf::Batch<double>::dbias(nprf::Index) const;
template const nprf::Matrix<double>& nprf::Batch<double>::dextra(nprf::Index) const;
template const nprf::Matrix<double>& nprf::Batch<double>::dlag_vectors(nprf::Index) const;

// a table that could not be chosen leaves a batch empty
#define NPRF_CALL_LEVEL(T)                                                                                           \
  template <>                                                                                                        \
  nprf::Batch<T>::~Batch() {                                                                                         \
    try {                                                                                                            \
      nprf::functions<T>().clear(*this);                                                                             \
    } catch (const std::logic_error&) {                                                                              \
    }                                                                                                                \
  }                                                                                                                  \
  template <>                                                                                                        \
  void nprf::Batch<T>::forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k, \
                               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call,          \
                               Saved<T>* saved, Lengths lengths) {                                                   \
    (this->*functions<T>().forward)(heads, q, k, v, y, call, saved, lengths);                                        \
  }                                                                                                                  \
  template <>                                                                                                        \
  nprf::GradientReport nprf::Batch<T>::backward(const HeadModels<T>& heads, const Saved<T>& saved,                   \
                                                const HeadsView<const T>& dy, const HeadsView<T>& dq,                \
                                                const HeadsView<T>& dk, const HeadsView<T>& dv) {                    \
    return (this->*functions<T>().backward)(heads, saved, dy, dq, dk, dv);                                           \
  }                                                                                                                  \
  NPRF_FEATURE_MAPS(NPRF_CALL_LEVEL_FOR_VIEW, , T)
#define NPRF_CALL_LEVEL_FOR_VIEW(FIRST, T, NAME, ...) \
  template <>                                         \
  template <>                                         \
  nprf::FeatureMapView<T>::FeatureMapView(const __VA_ARGS__& map) : FeatureMapView(functions<T>().NAME(map)) {}

NPRF_CALL_LEVEL(float)
NPRF_CALL_LEVEL(double)
