#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace katt::training {

/// A text as token ids, cut into rows. Row r of S tokens begins at token r·S, and its targets are
/// the same row shifted by one; the first row follows the last whole row.
class TokenData {
 public:
  /// Throws InputError when a token is not in 0 … vocab_size − 1.
  TokenData(std::vector<std::int32_t> tokens, std::int64_t vocab_size, const std::string& name);
  TokenData(std::span<const std::int64_t> tokens, std::int64_t vocab_size, const std::string& name);

  /// Reads any file, one token a byte.
  static TokenData from_bytes(const std::filesystem::path& path, std::int64_t vocab_size);

  /// Throws InputError when the text is shorter than one row of `seq` tokens and its targets.
  void check(std::int64_t seq) const;
  /// Fills `ids` and `targets`, (rows, seq), with rows first, first + 1, …. Throws as check().
  void fill(std::int64_t first, std::int64_t seq, std::span<std::int64_t> ids,
            std::span<std::int64_t> targets) const;

  /// The tokens as int32.
  [[nodiscard]] std::span<const unsigned char> bytes() const {
    return {reinterpret_cast<const unsigned char*>(tokens_.data()),
            tokens_.size() * sizeof(std::int32_t)};
  }
  /// Number of tokens.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  std::vector<std::int32_t> tokens_;
  std::string name_;
};

}  // namespace katt::training
