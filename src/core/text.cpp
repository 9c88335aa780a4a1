#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>

namespace katt::bench {
namespace {

std::string three_digits(double value, std::string_view unit) {
  std::array<char, 64> buffer{};
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::snprintf(buffer.data(), buffer.size(), "%.*f %.*s", decimals, value,
                static_cast<int>(unit.size()), unit.data());
  return buffer.data();
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <class Number>
std::errc read_whole(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return error;
  return end == text.data() + text.size() ? std::errc{} : std::errc::invalid_argument;
}

}  // namespace

std::string human_bytes(double bytes) {
  constexpr std::array<std::string_view, 6> units{"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  if (unit == 0) return std::to_string(static_cast<long long>(bytes)) + " B";
  return three_digits(bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0.9995e-6) return three_digits(seconds * 1e9, "ns");
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6, "us");
  if (seconds < 0.9995) return three_digits(seconds * 1e3, "ms");
  return three_digits(seconds, "s");
}

std::string human_duration(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(seconds, 0.0)));
  if (whole < 100) return std::to_string(whole) + " s";
  const long long minutes = (whole + 30) / 60;
  if (minutes < 100) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string counted_text(std::size_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.emplace_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != parts.data()) text += separator;
    text += part;
  }
  return text;
}

Parsed parse_integer(std::string_view text) {
  Parsed parsed;
  const std::errc error = read_whole(text, parsed.integer);
  if (error == std::errc::result_out_of_range) parsed.problem = "does not fit 64 bits";
  else if (error != std::errc{}) parsed.problem = "is not an integer";
  parsed.real = static_cast<double>(parsed.integer);
  return parsed;
}

Parsed parse_size(std::string_view text) {
  constexpr std::string_view letters = "kmg";
  const Parsed plain = parse_integer(text);
  if (text.empty() || plain.problem.empty()) return plain;
  const auto place =
      letters.find(static_cast<char>(std::tolower(static_cast<unsigned char>(text.back()))));
  if (place == std::string_view::npos) return plain;
  Parsed parsed = parse_integer(text.substr(0, text.size() - 1));
  const std::int64_t unit = std::int64_t{1} << (10 * (place + 1));
  if (!parsed.problem.empty()) return plain;
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (parsed.integer > most / unit || parsed.integer < -(most / unit)) {
    parsed.problem = "does not fit 64 bits";
    return parsed;
  }
  parsed.integer *= unit;
  parsed.real = static_cast<double>(parsed.integer);
  return parsed;
}

std::optional<bool> parse_truth(std::string_view text) {
  std::string word(text);
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

Parsed parse_real(std::string_view text) {
  Parsed parsed;
  const std::errc error = read_whole(text, parsed.real);
  if (error == std::errc::result_out_of_range) parsed.problem = "is beyond the range of a double";
  else if (error != std::errc{}) parsed.problem = "is not a number";
  else if (!std::isfinite(parsed.real)) parsed.problem = "is not a finite number";
  return parsed;
}

double as_written(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double number = 0;
  std::from_chars(text.data(), end, number);
  return number;
}

std::string to_text(double value) {
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::string("nan");
}

std::string truncated(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  std::size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end));
}

}  // namespace katt::bench
