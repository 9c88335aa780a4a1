#include "drivers/options/model_options.hpp"

#include <algorithm>
#include <cstdio>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "drivers/runtime/runtime.hpp"
#include "machine/machine.hpp"
#include "plan/axes.hpp"
#include "ranks/communicator.hpp"

namespace katt::impl {

namespace {

constexpr std::int64_t largest_count = 1 << 24;

}  // namespace

void ModelOptions::add_to(CommandLine& line) {
  line.option("--model", model,
              "folder of a Hugging Face LLaMA; with config.json alone, a random model");
  line.option("--dtype", dtype_text, "f32 (default), f16 or bf16: of weights and activations");
  line.option("--backend", backend_text, "openmp, serial or cuda");
  line.option("--device", device_text, device_help);
  line.option("--threads", threads_text, "host threads (default: every core)");
  line.option("--seed", seed_text, "seed of all that is random (default: 0)");
  line.flag("--json", json, "print the result as one line of JSON");
}

void ModelOptions::resolve(const std::string& usage) {
  folder = required_option("--model", model, usage);
  dtype = dtype_option(dtype_text).value_or(Dtype::f32);
  backend = backend_option(backend_text);
  device = device_option(device_text, backend);
  threads = threads_option(threads_text);
  seed = seed_option(seed_text, 0);
}

std::vector<std::int64_t> parse_tokens(const std::string& text, const std::string& where) {
  std::vector<std::int64_t> tokens;
  for (const std::string& part : bench::split(text, ',')) {
    tokens.push_back(bench::parse_count(where, part, 0, largest_count));
  }
  return tokens;
}

std::int64_t count_option(const char* name, const std::optional<std::string>& text,
                          std::int64_t minimum, std::int64_t fallback) {
  return text ? bench::parse_count(name, *text, minimum, largest_count) : fallback;
}

double number_option(const char* name, const std::optional<std::string>& text, double minimum,
                     double maximum, double fallback) {
  return text ? bench::parse_number(name, *text, minimum, maximum) : fallback;
}

void tell(const std::string& note) {
  if (!note.empty() && ranks::world().rank() == 0) std::fprintf(stderr, "katt: %s\n", note.c_str());
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

const std::string& required_option(const char* name, const std::optional<std::string>& text,
                                   const std::string& usage) {
  if (!text || text->empty()) throw InputError(std::string(name) + " is missing: " + usage);
  return *text;
}

}  // namespace katt::impl
