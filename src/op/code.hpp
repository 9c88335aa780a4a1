#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace katt::bench {

/// A file of the project, by its path in the source tree, and the hash of its tokens.
struct CodeFile {
  std::string_view file, tokens;
};

/// The code that an operator's variant and its baseline are made of (docs/published_results.md, "The code of
/// a row"): its name of 16 hex digits, and its files as indices into CodeTable::files. Variants
/// without an entry of their own have that of variant "". Training and inference of models have op "model", and neither
/// pass nor variant.
struct Code {
  std::string_view op, pass, variant, name;
  std::span<const std::uint16_t> files;
};

struct CodeTable {
  std::span<const CodeFile> files;
  std::span<const Code> codes;
};

namespace impl {
/// Code that cmake/write_code.py found in this build; empty where it could not run.
[[nodiscard]] CodeTable code_table();
}  // namespace impl

/// The code of a variant; nothing for operators that the table lacks.
[[nodiscard]] inline const Code* find_code(std::string_view op, std::string_view pass,
                                           std::string_view variant) {
  const Code* found = nullptr;
  for (const Code& code : impl::code_table().codes) {
    if (code.op != op || code.pass != pass) continue;
    if (code.variant == variant) return &code;
    if (code.variant.empty()) found = &code;
  }
  return found;
}

}  // namespace katt::bench
