#pragma once

#include <optional>
#include <string>
#include <vector>

/// The TOML of a sweep file as plain text. Includes no Kokkos, because nvcc cannot compile the TOML
/// library.
namespace katt::bench {

/// A key with its value in the syntax of the command line: an array is a list with commas, true
/// is 1.
struct TomlKey {
  std::string name;  ///< as written
  std::string text;
  bool is_string = false;
  int line = 0;
};

struct TomlTable {
  int line = 0;
  std::vector<TomlKey> keys;

  /// The key of that name, or nothing.
  [[nodiscard]] const TomlKey* find(const std::string& name) const;
};

struct TomlDocument {
  TomlTable top;                                 ///< keys outside of any table
  std::optional<TomlTable> axes;                 ///< [axes]
  std::optional<std::vector<TomlTable>> sweeps;  ///< [sweep] or [[sweep]]
};

/// Parses the text of a file called `name`. Throws InputError of one line, "NAME:LINE: …", for text
/// that is not TOML, other tables, and values other than integer, number, boolean, string and
/// array.
[[nodiscard]] TomlDocument parse_toml(const std::string& name, const std::string& text);

}  // namespace katt::bench
