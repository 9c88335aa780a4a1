#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/dtype.hpp"
#include "drivers/options/command_line.hpp"
#include "nn/config.hpp"
#include "nn/inference/session.hpp"

namespace katt::impl {

/// The options that every command on a model has.
struct ModelOptions {
  bool json = false;

  std::filesystem::path folder;
  Dtype dtype = Dtype::f32;
  Backend backend = Backend::openmp;
  std::optional<int> device;  ///< empty: none was chosen
  int threads = 0;
  std::uint64_t seed = 0;

  void add_to(CommandLine& line);
  /// Reads the texts. Throws InputError; `usage` says how the command is called.
  void resolve(const CommandLine& line, const std::string& usage);
  /// "DIR: 4 layers, …; f32 on openmp, 2 threads": what runs, for --verbose.
  [[nodiscard]] std::string resolved_text() const;
};

/// "1,2,3" as token ids. Throws InputError that names their place.
[[nodiscard]] std::vector<std::int64_t> parse_tokens(const std::string& text,
                                                     const std::string& where = "--tokens");

/// Number of ranks of a host that share the memory of a rank: all of them share the host's memory,
/// the ranks on the same device share its memory.
[[nodiscard]] std::size_t ranks_on_memory(int ranks_on_host, const ModelOptions& options);

/// A note where a text of so many tokens is longer than the model says it takes; else empty.
[[nodiscard]] std::string positions_note(const nn::LlamaConfig& config, std::int64_t tokens);

/// Throws InputError when the backend has less free memory.
void check_fits(const std::string& what, std::size_t bytes, Backend backend);

/// The same for inference with the model of these options, before any allocation. Throws InputError
/// also for a folder without a model.
template <class Exec>
void check_inference_fits(const Exec& exec, const ModelOptions& options,
                          const nn::SessionOptions& session) {
  const auto memory =
      nn::inference_memory(exec, nn::read_config(options.folder), options.dtype, session);
  check_fits(options.folder.string() + ": inference",
             memory.total() * ranks_on_memory(ranks::world().ranks_on_host(), options),
             options.backend);
}

}  // namespace katt::impl
