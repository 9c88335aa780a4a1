#pragma once

#include <gtest/gtest.h>

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

/// Whether a text holds a part; a failure shows both.
inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  return ::testing::AssertionResult(found) << "\"" << text << "\" and \"" << part << "\"";
}

}  // namespace katt::test
