#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

namespace katt::testing {

/// f of every element, in their order; computed by all threads of the host, whose values do not
/// depend on their number. The reference of a large case takes tens of seconds in one thread.
template <class Element, class F>
auto of_each(const std::vector<Element>& elements, const F& f) {
  std::vector<std::decay_t<decltype(f(elements.front()))>> values(elements.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < elements.size(); ++i) values[i] = f(elements[i]);
  return values;
}

}  // namespace katt::testing
