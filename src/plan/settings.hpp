#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "measure/measure.hpp"

namespace katt::bench {

/// A setting of the measuring contract as an option (`--budget-s`) and a key of a sweep file.
struct SettingSpec {
  std::string key;
  std::string help;
};

[[nodiscard]] const std::vector<SettingSpec>& setting_specs();

/// Sets the setting of that key from text. Returns false when there is no such key. Throws
/// InputError that begins with `where`.
[[nodiscard]] bool set_setting(Settings& settings, std::string_view key, std::string_view text,
                               std::string_view where);

}  // namespace katt::bench
