#pragma once

#include <string>
#include <vector>

namespace katt::test {

/// The command line of a test program beside GoogleTest's own options.
inline std::vector<std::string>& arguments() {
  static std::vector<std::string> all;
  return all;
}

/// The value of `--name VALUE`, else `fallback`.
inline std::string argument(const std::string& name, const std::string& fallback) {
  const std::vector<std::string>& all = arguments();
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i] == "--" + name) return all[i + 1];
  }
  return fallback;
}

}  // namespace katt::test
