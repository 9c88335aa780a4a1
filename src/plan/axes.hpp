#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "op/registry.hpp"

namespace katt::bench {

/// Largest extent of a tile that a user can request.
inline constexpr int max_tile = 65536;

/// Values of an axis as typed on the command line or in a TOML file. "4k" is 4096, "1M" 1024²; an
/// axis of 0 and 1 takes true and false; dtypes have further names (dtype_of_text).
struct AxisText {
  std::string key;    ///< name or short name, with '_' for '-'
  std::string text;   ///< e.g. "512,1024", "512:16384:x2", "64:256:+64", "f32,bf16"
  std::string where;  ///< the beginning of messages: "--seq", or "sweep.toml:7: seq"
};

/// The values of an axis, in the order written, each once. Items are separated by commas; an item
/// is a value, or a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP that holds LAST where a step hits
/// it. Throws InputError of one line: the place, what it holds, what was expected.
[[nodiscard]] std::vector<AxisValue> parse_axis(const AxisSpec& spec, const AxisText& typed);

/// Tiles written QxKV: "64x64,128x32". "auto" is the variant's default. The message about any other
/// text lists `presets`, which the caller has handled before.
[[nodiscard]] std::vector<Setting> parse_tiles(const AxisText& typed,
                                               std::span<const std::string> presets = {});

/// The dtype of a name of this or another program: f32, fp32, float32; f16, fp16, float16, half;
/// bf16, bfloat16. Nothing for another text.
[[nodiscard]] std::optional<Dtype> dtype_of_text(std::string_view text);

/// One integer, for options other than axes: "4k" is 4096; with limits 0 and 1 also true and false.
[[nodiscard]] std::int64_t parse_count(std::string_view where, std::string_view text,
                                       std::int64_t minimum, std::int64_t maximum);
/// One finite number in [minimum, maximum].
[[nodiscard]] double parse_number(std::string_view where, std::string_view text, double minimum,
                                  double maximum);

/// The value as it is typed.
[[nodiscard]] std::string to_text(const AxisValue& value);
using katt::to_text;

/// A key or option in the form of the look-up: '_' for '-', without leading dashes.
[[nodiscard]] std::string canonical_key(std::string_view key);

/// Appends a value to a list that lacks it.
template <class T, class Same = std::equal_to<>>
void add_once(std::vector<T>& list, T value, const Same& same = {}) {
  if (std::ranges::none_of(list, [&](const T& known) { return same(known, value); })) {
    list.push_back(std::move(value));
  }
}

}  // namespace katt::bench
