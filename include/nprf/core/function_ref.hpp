// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

namespace nprf {

template <class Signature>
class FunctionRef;

/// A reference to a function object of any type. A function that takes a FunctionRef is compiled once, not for each
/// type of function object. The object must outlive the reference.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class F>
    requires std::is_object_v<F> && std::is_invocable_r_v<Result, const F&, Arguments...> &&
                 (!std::same_as<F, FunctionRef>)
  FunctionRef(const F& f)
      : m_object(&f), m_call([](const void* object, Arguments... arguments) -> Result {
          if constexpr (std::is_void_v<Result>)
            (*static_cast<const F*>(object))(std::forward<Arguments>(arguments)...);
          else
            return (*static_cast<const F*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return m_call(m_object, std::forward<Arguments>(arguments)...); }

 private:
  const void* m_object;
  Result (*m_call)(const void*, Arguments...);
};

}  // namespace nprf
