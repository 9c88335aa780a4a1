#pragma once

#include <string>

#include "core/error.hpp"

namespace katt::test {

/// Message of the exception E that f throws, or "" when it throws none.
template <class E = InputError, class F>
std::string message_of(F&& f) {
  try {
    (void)f();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace katt::test
