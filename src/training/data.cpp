#include "training/data.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "io/mapped_file.hpp"

namespace katt::training {

namespace {

template <class Token>
void check_tokens(std::span<const Token> tokens, std::int64_t vocab_size, const std::string& name) {
  const auto outside =
      std::ranges::find_if(tokens, [=](Token token) { return token < 0 || token >= vocab_size; });
  if (outside != tokens.end()) {
    throw InputError(name + ": token " + std::to_string(outside - tokens.begin()) + " is " +
                     std::to_string(*outside) + ", expected 0 to " +
                     std::to_string(vocab_size - 1) + ", the vocabulary of the model");
  }
}

}  // namespace

TokenData::TokenData(std::vector<std::int32_t> tokens, std::int64_t vocab_size,
                     const std::string& name)
    : tokens_(std::move(tokens)), name_(name) {
  check_tokens(std::span<const std::int32_t>(tokens_), vocab_size, name);
}

TokenData::TokenData(std::span<const std::int64_t> tokens, std::int64_t vocab_size,
                     const std::string& name)
    : name_(name) {
  check_tokens(tokens, vocab_size, name);
  for (const std::int64_t token : tokens) tokens_.push_back(static_cast<std::int32_t>(token));
}

TokenData TokenData::from_bytes(const std::filesystem::path& path, std::int64_t vocab_size) {
  const io::impl::MappedFile file(path, "a text");
  std::vector<std::int32_t> tokens;
  tokens.reserve(file.bytes().size());
  for (const std::byte byte : file.bytes()) tokens.push_back(std::to_integer<std::int32_t>(byte));
  return {std::move(tokens), vocab_size, path.string()};
}

void TokenData::check(std::int64_t seq) const {
  if (size() > seq) return;
  throw InputError(name_ + ": holds " + std::to_string(size()) +
                   " tokens, expected at least one more than the --seq of " + std::to_string(seq));
}

void TokenData::fill(std::int64_t first, std::int64_t seq, std::span<std::int64_t> ids,
                     std::span<std::int64_t> targets) const {
  check(seq);
  const std::int64_t rows = (size() - 1) / seq;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % seq;
    const std::int64_t row = (first + static_cast<std::int64_t>(i) / seq) % rows;
    const auto at = static_cast<std::size_t>(row * seq + column);
    ids[i] = tokens_[at];
    targets[i] = tokens_[at + 1];
  }
}

}  // namespace katt::training
