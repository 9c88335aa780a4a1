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
  std::optional<int> device;  ///< where one was chosen
  int threads = 0;
  std::uint64_t seed = 0;

  void add_to(CommandLine& line);
  /// Reads the texts. Throws InputError; `usage` says how the command is called.
  void resolve(const CommandLine& line, const std::string& usage);
};

/// "1,2,3" as token ids. Throws InputError that names where they stand.
[[nodiscard]] std::vector<std::int64_t> parse_tokens(const std::string& text,
                                                     const std::string& where = "--tokens");

/// A line on stderr, of rank 0: what a user should know of a run that goes on. None where it is empty.
void tell(const std::string& note);

/// How many of the ranks of a host share the memory that a rank works in: all of them the host's,
/// those that got the same device its memory.
[[nodiscard]] std::size_t ranks_on_memory(int ranks_on_host, const ModelOptions& options);

/// Throws InputError where the backend has not so much memory left.
void check_fits(const std::string& what, std::size_t bytes, Backend backend);

/// The same for inference with the model of these options, before any of it is allocated. Throws
/// InputError for a folder without a model, too.
template <class Exec>
void check_inference_fits(const Exec& exec, const ModelOptions& options,
                          const nn::SessionOptions& session) {
  const auto memory =
      nn::inference_memory(exec, nn::read_config(options.folder), options.dtype, session);
  check_fits(options.folder.string() + ": inference", memory.total(), options.backend);
}

}  // namespace katt::impl
