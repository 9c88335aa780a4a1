#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "op/reference/fill.hpp"

/// Damaged files: a valid one and a number give a file with one to eight changes, the same on every
/// machine.
namespace katt::test {

/// The random numbers of one mutation.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t index) : seed_(testing::hash(seed, index)) {}

  std::uint64_t next() { return testing::hash(seed_, count_++); }
  /// Uniform in [0, below), and 0 for an empty range.
  std::size_t below(std::size_t below) { return below == 0 ? 0 : next() % below; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class List>
  const auto& of(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

/// An integer that readers stumble over: next to 0, to the ends of a type or to the file's size.
inline std::uint64_t odd_integer(Dice& dice, std::size_t file_bytes) {
  constexpr std::array<std::uint64_t, 12> bases{
      0,          0,          1ULL << 7,  1ULL << 8,  1ULL << 15, 1ULL << 16,
      1ULL << 31, 1ULL << 32, 1ULL << 48, 1ULL << 63, ~0ULL,      0x0101010101010101ULL};
  if (dice.one_in(4)) return dice.below(2 * file_bytes + 1);
  return dice.of(bases) + dice.below(3) - 1;
}

/// One change that knows nothing of the format; `other` is a second valid file to take from.
inline void damage_bytes(std::string& file, const std::string& other, Dice& dice) {
  if (file.empty()) file = other.substr(0, 1);
  const std::size_t place = dice.below(file.size());
  const std::size_t length =
      1 + dice.below(std::min<std::size_t>(file.size() - place, dice.one_in(4) ? 4096 : 24));
  switch (dice.below(10)) {
    case 0: file[place] ^= static_cast<char>(1U << dice.below(8)); break;
    case 1: file[place] = static_cast<char>(dice.next()); break;
    case 2:
    case 3: {  // an integer; most lie at multiples of their size
      const std::size_t bytes = std::size_t{1} << dice.below(4);
      const std::size_t at = dice.one_in(4) ? place : place / bytes * bytes;
      const std::uint64_t value = odd_integer(dice, file.size());
      std::memcpy(file.data() + at, &value, std::min(bytes, file.size() - at));
      break;
    }
    case 4: file.resize(place); break;
    case 5: file.erase(place, length); break;
    case 6: file.insert(place, file, dice.below(file.size()), length); break;
    case 7: {
      const std::size_t from = dice.below(file.size());
      const std::string part = file.substr(from, length);
      file.replace(place, std::min(part.size(), file.size() - place), part);
      break;
    }
    case 8: {  // a splice: from here on, or for a while, another file
      const std::size_t to = dice.one_in(2) ? std::string::npos : length;
      file.replace(place, to, other.substr(std::min(place, other.size()), to));
      break;
    }
    default: file.replace(place, length, length, dice.one_in(2) ? '\xFF' : '\0'); break;
  }
}

/// The words of a text in JSON or TOML: [begin, end) of numbers, names and quoted texts.
inline std::vector<std::pair<std::size_t, std::size_t>> words_of(std::string_view text) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '-' || c == '+';
  };
  std::vector<std::pair<std::size_t, std::size_t>> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (text[at] == '"') {
      const std::size_t close = text.find('"', at + 1);
      at = close == std::string_view::npos ? text.size() : close + 1;
    } else {
      while (at < text.size() && is_word(text[at])) ++at;
    }
    if (at > begin) words.emplace_back(begin, at);
    else ++at;
  }
  return words;
}

/// One change to a text in JSON or TOML that is likely to leave it one: a value of another size or
/// type, a line dropped, given twice or moved, brackets without end.
inline void damage_text(std::string& text, const std::string& other, Dice& dice) {
  static const std::array<std::string_view, 40> values{"0",
                                                       "-1",
                                                       "1",
                                                       "2",
                                                       "7",
                                                       "1048576",
                                                       "2147483647",
                                                       "2147483648",
                                                       "-2147483649",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "-9223372036854775808",
                                                       "18446744073709551616",
                                                       "1e308",
                                                       "1e400",
                                                       "-1e-400",
                                                       "0.5",
                                                       "-0.0",
                                                       "NaN",
                                                       "nan",
                                                       "inf",
                                                       "-Infinity",
                                                       "true",
                                                       "false",
                                                       "null",
                                                       "\"\"",
                                                       "\"x\"",
                                                       "\"1:9223372036854775807:+1\"",
                                                       "\"1:1000000:x1.0000001\"",
                                                       "\"\\u0000\\n\\u001b\"",
                                                       "\"auto\"",
                                                       "[]",
                                                       "{}",
                                                       "[1, [2, [3]]]",
                                                       "[\"f32\", 1, 2.5]",
                                                       "{\"a\": {}}",
                                                       "1979-05-27",
                                                       "0x7fffffffffffffff",
                                                       "\"\xC3\x28\"",
                                                       "\"\"\"\n\"\"\""};
  const auto words = words_of(text);
  const auto line_begin = [&](std::size_t place) {
    return place == 0 ? 0 : text.rfind('\n', place - 1) + 1;  // npos + 1 is 0
  };
  const std::size_t begin = line_begin(dice.below(text.size()));
  const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
  switch (dice.below(text.empty() ? 1 : 10)) {
    case 0: damage_bytes(text, other, dice); break;
    case 1: text.erase(begin, end - begin); break;
    case 2: text.insert(begin, text.substr(begin, end - begin)); break;
    case 3: {
      const std::string line = text.substr(begin, end - begin);
      text.erase(begin, end - begin);
      text.insert(line_begin(dice.below(text.size())), line);
      break;
    }
    case 4: {  // brackets: a few, or more than a stack holds
      const std::size_t depth = dice.one_in(8) ? 200'000 : 1 + dice.below(40);
      const std::string_view pair = dice.of(std::array<std::string_view, 3>{"[]", "{}", "()"});
      const bool closed = dice.one_in(2);
      if (words.empty()) break;
      const auto& word = words[dice.below(words.size())];
      if (closed) text.insert(word.second, depth, pair[1]);
      text.insert(word.first, depth, pair[0]);
      break;
    }
    default: {
      if (words.empty()) break;
      const auto& [from, to] = words[dice.below(words.size())];
      const std::string_view word = std::string_view(text).substr(from, to - from);
      const auto& taken = words[dice.below(words.size())];
      const std::string value = dice.one_in(4)
                                    ? text.substr(taken.first, taken.second - taken.first)
                                : dice.one_in(6) ? std::string(word) + std::string(word)
                                                 : std::string(dice.of(values));
      text.replace(from, to - from, value);
    }
  }
}

/// A change to the header of a safetensors file, the length of which stays right.
inline void damage_header(std::string& file, const std::string& other, Dice& dice) {
  std::uint64_t length = 0;
  if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
  if (file.size() < sizeof length || length > file.size() - sizeof length) {
    damage_bytes(file, other, dice);
    return;
  }
  std::string header = file.substr(sizeof length, length);
  damage_text(header, other, dice);
  file.replace(sizeof length, length, header);
  length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
}

using Damage = void (*)(std::string& file, const std::string& other, Dice& dice);

/// A damaged file: mostly one or two changes, three of four of them by `damage`.
inline std::string damaged(std::string file, const std::string& other, Damage damage, Dice& dice) {
  for (std::size_t changes = 1 + dice.below(dice.one_in(2) ? 2 : 8); changes > 0; --changes) {
    (dice.one_in(4) ? damage_bytes : damage)(file, other, dice);
  }
  return file;
}

}  // namespace katt::test
