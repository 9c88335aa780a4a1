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
  std::optional<std::string> model, dtype_text, backend_text, device_text, threads_text, seed_text;
  bool json = false;

  std::filesystem::path folder;
  Dtype dtype = Dtype::f32;
  Backend backend = Backend::openmp;
  std::optional<int> device;  ///< empty: none was chosen
  int threads = 0;
  std::uint64_t seed = 0;

  void add_to(CommandLine& line);
  /// Reads the texts. Throws InputError; `usage` says how the command is called.
  void resolve(const std::string& usage);
};

/// "1,2,3" as token ids. Throws InputError that names their place.
[[nodiscard]] std::vector<std::int64_t> parse_tokens(const std::string& text,
                                                     const std::string& where = "--tokens");

/// The text of an option as a count or a number, or the default. Throws InputError.
[[nodiscard]] std::int64_t count_option(const char* name, const std::optional<std::string>& text,
                                        std::int64_t minimum, std::int64_t fallback);
[[nodiscard]] double number_option(const char* name, const std::optional<std::string>& text,
                                   double minimum, double maximum, double fallback);

/// Rank 0 prints a remark on a continuing run as a line on stderr; prints nothing when it is empty.
void tell(const std::string& note);

/// Number of ranks of a host that share the memory of a rank: all of them share the host's memory,
/// the ranks on the same device share its memory.
[[nodiscard]] std::size_t ranks_on_memory(int ranks_on_host, const ModelOptions& options);

/// Throws InputError when the backend has less free memory.
void check_fits(const std::string& what, std::size_t bytes, Backend backend);

/// The same for inference with the model of these options, before any allocation. Throws InputError
/// also for a folder without a model.
template <class Exec>
void check_inference_fits(const Exec& exec, const ModelOptions& options,
                          const nn::SessionOptions& session) {
  const auto memory =
      nn::inference_memory(exec, nn::read_config(options.folder), options.dtype, session);
  check_fits(options.folder.string() + ": inference", memory.total(), options.backend);
}

/// The text of a required option.
[[nodiscard]] const std::string& required_option(const char* name,
                                                 const std::optional<std::string>& text,
                                                 const std::string& usage);

}  // namespace katt::impl
