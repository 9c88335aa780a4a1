#include "drivers/options/model_options.hpp"

#include <algorithm>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "drivers/runtime/runtime.hpp"
#include "machine/machine.hpp"
#include "plan/axes.hpp"

namespace katt::impl {

void ModelOptions::add_to(CommandLine& line) {
  line.option("--model", "folder of a Hugging Face LLaMA; with config.json alone, a random model",
              folders());
  line.option("--dtype", "f32 (default), f16 or bf16: of weights and activations", dtype_values());
  line.option("--backend", "openmp, serial or cuda", backend_values());
  line.option("--device", device_help);
  line.option("--threads", "host threads (default: every core)");
  line.option("--seed", "seed of all that is random (default: 0)");
  line.flag("--json", json, "print the result as one line of JSON");
}

void ModelOptions::resolve(const CommandLine& line, const std::string& usage) {
  folder = line.required("--model", usage);
  dtype = dtype_option(line.text("--dtype")).value_or(Dtype::f32);
  backend = backend_option(line.text("--backend"));
  device = device_option(line.text("--device"), backend);
  threads = threads_option(line.text("--threads"));
  seed = seed_option(line.text("--seed"), 0);
}

std::string ModelOptions::resolved_text() const {
  const nn::LlamaConfig config = nn::read_config(folder);
  std::string text =
      folder.string() + ": " +
      bench::counted_text(static_cast<std::size_t>(config.num_hidden_layers), "layer") + " of " +
      std::to_string(config.hidden_size) + ", " +
      bench::counted_text(static_cast<std::size_t>(config.num_attention_heads), "head") +
      ", vocabulary of " + std::to_string(config.vocab_size) + "; " + std::string(name_of(dtype)) +
      " on " + bench::device_name(backend);
  if (const int used = bench::resolved_threads(backend, threads); used > 0) {
    text += ", " + bench::counted_text(static_cast<std::size_t>(used), "thread");
  }
  return text;
}

std::vector<std::int64_t> parse_tokens(const std::string& text, const std::string& where) {
  std::vector<std::int64_t> tokens;
  for (const std::string& part : bench::split(text, ',')) {
    tokens.push_back(bench::parse_count(where, part, 0, largest_count));
  }
  return tokens;
}

std::string positions_note(const nn::LlamaConfig& config, std::int64_t tokens) {
  if (tokens <= config.max_position_embeddings) return "";
  return "a text of up to " + std::to_string(tokens) + " tokens, more than the " +
         std::to_string(config.max_position_embeddings) +
         " of max_position_embeddings in the model's config.json";
}

void check_fits(const std::string& what, std::size_t bytes, Backend backend) {
  const std::size_t available = bench::available_memory(backend);
  if (bytes <= available) return;
  throw InputError(what + " needs " + bench::human_bytes(static_cast<double>(bytes)) +
                   " of memory, expected at most the " +
                   bench::human_bytes(static_cast<double>(available)) + " that are available");
}

std::size_t ranks_on_memory(int ranks_on_host, const ModelOptions& options) {
  const int devices =
      options.backend == Backend::cuda && !options.device ? std::max(devices::count(), 1) : 1;
  return static_cast<std::size_t>((ranks_on_host + devices - 1) / devices);
}

}  // namespace katt::impl
