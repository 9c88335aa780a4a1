#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Numbers and words as people read them, and the small text helpers of the sweep.
namespace katt::bench {

/// "34.4 GB": decimal units, three significant digits.
[[nodiscard]] std::string human_bytes(double bytes);
/// "3.21 ms": three significant digits.
[[nodiscard]] std::string human_seconds(double seconds);
/// "40 s", "3 min", "1 h 20 min".
[[nodiscard]] std::string human_duration(double seconds);

/// "1 row", "3 rows".
[[nodiscard]] std::string counted_text(std::size_t count, std::string_view what);

/// The parts of a text between separators, with surrounding blanks removed; "a,,b" has an empty
/// part.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::string join(std::span<const std::string> parts, std::string_view separator);

/// The whole text as a number, or the reason why it is not one: "is not an integer", "does not fit
/// …".
struct Parsed {
  std::int64_t integer = 0;
  double real = 0;
  std::string problem;  ///< empty: the text is a number
};
[[nodiscard]] Parsed parse_integer(std::string_view text);
[[nodiscard]] Parsed parse_real(std::string_view text);  ///< finite numbers only
/// An integer, or one of 1024, 1024² or 1024³: "4k", "1M", "2G".
[[nodiscard]] Parsed parse_size(std::string_view text);
/// true, yes, on; false, no, off; nothing for any other text.
[[nodiscard]] std::optional<bool> parse_truth(std::string_view text);

/// Shortest text that reads back as the same number.
[[nodiscard]] std::string to_text(double value);

/// The shortest decimal number that rounds to this f32: 1e-5, as people write it.
[[nodiscard]] double as_written(float value);

/// The known words that an unknown word may mean, at most three. The first of these classes that
/// has a match wins: the same but for case and dashes; other words for the same thing
/// ("sequence_length" for "seq"); words that share parts ("batch_size" for "batch"); few typing
/// errors. (suggestion.cpp)
[[nodiscard]] std::vector<std::string> nearest(std::string_view word,
                                               std::span<const std::string> known);
/// "did you mean --seq or --seq-q?" with the nearest words; empty when there is none.
[[nodiscard]] std::string suggestion(std::string_view word, std::span<const std::string> known);

/// Text cut to at most `bytes`, never inside a UTF-8 sequence.
[[nodiscard]] std::string truncated(std::string_view text, std::size_t bytes);

}  // namespace katt::bench
