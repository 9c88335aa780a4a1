#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace katt::impl {

/// Prompts of `katt generate`: token ids.
using Prompts = std::vector<std::vector<std::int64_t>>;

/// The prompts of a text file, one a line, token ids with commas between them: "1,2,3". A regular file: a
/// pipe may never end. Throws InputError that names the file and the line.
[[nodiscard]] Prompts read_prompts(const std::filesystem::path& path);

/// The place of a prompt: "FILE:LINE".
[[nodiscard]] std::string line_of(const std::filesystem::path& path, std::size_t prompt);

/// Throws InputError for an id outside the vocabulary; `where` is the option, or FILE:LINE.
void check_vocabulary(std::span<const std::int64_t> tokens, const std::string& where,
                      std::int64_t vocab_size);

}  // namespace katt::impl
