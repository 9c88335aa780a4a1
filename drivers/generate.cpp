#include "nn/generate.hpp"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "bench/profile.hpp"
#include "bench/text.hpp"
#include "core/execution.hpp"
#include "drivers/commands.hpp"
#include "drivers/layout_options.hpp"
#include "drivers/model_options.hpp"
#include "drivers/model_profile.hpp"
#include "drivers/runtime.hpp"
#include "drivers/scratch.hpp"
#include "io/atomic_file.hpp"
#include "io/case_file.hpp"
#include "memory/tracker.hpp"

namespace katt::impl {
namespace {

constexpr const char* generate_usage =
    "katt generate --model DIR --tokens 1,2,3 --max-new-tokens N";
constexpr std::int64_t bytes_of_a_text = 256;

/// What a run used, in bytes; the peak is measured.
struct Memory {
  std::size_t weights, cache, activations, workspace, peak;
};

double rate(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void print_summary(const nn::Generated& made, std::size_t prompt, const Memory& memory) {
  const auto bytes = [](std::size_t n) { return bench::human_bytes(static_cast<double>(n)); };
  const std::size_t decoded = made.tokens.size() - 1;  // the first comes from the prefill
  std::printf("prefill  %zu tokens in %s, %.0f tokens/s\n", prompt,
              bench::human_seconds(made.prefill_s).c_str(), rate(prompt, made.prefill_s));
  std::printf("decode   %zu tokens in %s, %.0f tokens/s\n", decoded,
              bench::human_seconds(made.decode_s).c_str(), rate(decoded, made.decode_s));
  std::printf("memory   weights %s, cache %s, activations %s, workspace %s; peak %s\n",
              bytes(memory.weights).c_str(), bytes(memory.cache).c_str(),
              bytes(memory.activations).c_str(), bytes(memory.workspace).c_str(),
              bytes(memory.peak).c_str());
}

/// HDF5: the times as attributes, and the profile.
void write_log(const std::filesystem::path& path, const nn::Generated& made, std::size_t prompt,
               const ModelOptions& options, const io::Profile& profile) {
  io::TensorFile file;
  describe_run(file, "generate", options.backend, options.threads, options.dtype, profile);
  file.set_attribute("prompt", static_cast<std::int64_t>(prompt));
  file.set_attribute("new_tokens", static_cast<std::int64_t>(made.tokens.size()));
  file.set_attribute("prefill_s", made.prefill_s);
  file.set_attribute("decode_s", made.decode_s);
  file.write(path);
}

void print_json(const nn::Generated& made, std::size_t prompt, const Memory& memory) {
  const nlohmann::ordered_json object{
      {"tokens", made.tokens},
      {"prefill_s", made.prefill_s},
      {"decode_s", made.decode_s},
      {"prefill_tokens_s", rate(prompt, made.prefill_s)},
      {"decode_tokens_s", rate(made.tokens.size() - 1, made.decode_s)},
      {"weight_bytes", memory.weights},
      {"cache_bytes", memory.cache},
      {"activation_bytes", memory.activations},
      {"workspace_bytes", memory.workspace},
      {"peak_bytes", memory.peak}};
  std::printf("%s\n", object.dump().c_str());
}

/// Printable ASCII and ends of lines as they are, other bytes as \xNN: a model may say anything.
void print_byte(int byte) {
  if ((byte >= ' ' && byte <= '~') || byte == '\n') {
    std::putchar(byte);
  } else {
    std::printf("\\x%02x", static_cast<unsigned>(byte));
  }
}

void print_tokens(const std::vector<std::int64_t>& tokens, bool as_text) {
  if (as_text) {
    for (const std::int64_t token : tokens) print_byte(static_cast<int>(token));
    std::putchar('\n');
  }
  std::vector<std::string> ids;
  for (const std::int64_t token : tokens) ids.push_back(std::to_string(token));
  std::printf("%s\n", bench::join(ids, ",").c_str());
}

}  // namespace

int generate_command(const Invocation& invocation) {
  CommandLine line("katt generate", "Continue a prompt with a LLaMA; the last line is the new ids");
  ModelOptions options;
  std::optional<std::string> tokens, text, count, temperature, top_k, top_p, chunk;
  nn::GenerateOptions how;
  bool no_cache = false;
  bool profile = false;
  std::optional<std::string> log;
  LayoutOptions ranks;
  options.add_to(line);
  ranks.add_model_to(line);
  line.option("--tokens", tokens, "token ids of the prompt: 1,2,3");
  line.option("--text", text, "prompt as a text, for models of bytes; the answer is one, too");
  line.option("--max-new-tokens", count, "tokens to generate (default: 32)");
  line.option("--temperature", temperature, "0 (default): always the most likely token");
  line.option("--top-k", top_k, "sample from the k most likely tokens (default: 0, all)");
  line.option("--top-p", top_p, "sample from the fewest that hold this probability (default: 1)");
  line.option("--chunk", chunk, "tokens of the prompt taken at a time (default: 512)");
  line.flag("--no-cache", no_cache, "compute the whole text again for every token");
  line.flag("--profile", profile, "tell where the time goes, by phase and operator");
  line.option("--log", log, "HDF5 file for the profile and the times");
  line.flag("--stop-at-eos", how.stop_at_eos, "stop after the model's end-of-sequence token");
  if (!line.parse(invocation.arguments)) return 0;
  options.resolve(generate_usage);
  ranks.resolve();
  ranks.expect_model_alone("katt generate");
  if (!text == !tokens)
    throw InputError("--tokens or --text: expected one of them: " + std::string(generate_usage));
  std::vector<std::int64_t> prompt;
  if (tokens) prompt = parse_tokens(*tokens);
  for (const char byte : text.value_or("")) prompt.push_back(static_cast<unsigned char>(byte));
  if (prompt.empty()) throw InputError("--text: is empty, expected a prompt");
  how.max_new_tokens = count_option("--max-new-tokens", count, 1, 32);
  how.sampling = {.temperature = number_option("--temperature", temperature, 0, 1e6, 0),
                  .top_k = count_option("--top-k", top_k, 0, 0),
                  .top_p = number_option("--top-p", top_p, 0, 1, 1),
                  .seed = options.seed};
  how.use_cache = !no_cache;
  const std::int64_t most = count_option("--chunk", chunk, 1, 512);
  if (log) {
    const io::AtomicFile writable(*log);
  }

  const Runtime runtime(options.threads, options.device);
  visit_backend(options.backend, options.threads, [&](const auto& exec) {
    allocate_scratch(exec);
    const auto length = static_cast<std::int64_t>(prompt.size()) + how.max_new_tokens;
    const nn::SessionOptions of_session{
        .capacity = length, .chunk = most, .groups = ranks.groups()};
    check_inference_fits(exec, options, of_session);
    const memory::Scope scope;
    const auto model =
        nn::open_model(exec, options.folder, options.dtype, options.seed, of_session.groups);
    if (text && model.config().vocab_size != bytes_of_a_text) {
      throw InputError("--text: the model has a vocabulary of " +
                       std::to_string(model.config().vocab_size) + ", expected 256, bytes");
    }
    nn::Session session(model, of_session);
    bench::Profiler profiler;
    if (profile) profiler.start();
    const nn::Generated made = nn::generate(session, model.config(), prompt, how);
    profiler.stop();
    const Memory memory{model.bytes(), session.cache_bytes(), session.activation_bytes(),
                        session.workspace_bytes(), scope.peak_bytes()};
    io::Profile where;
    if (profile) {
      where = profiler.mean(1, made.prefill_s + made.decode_s);
      print_profile(where, options.backend, options.threads, options.dtype, stderr);
    }
    if (log) write_log(*log, made, prompt.size(), options, where);
    if (options.json) {
      print_json(made, prompt.size(), memory);
    } else {
      print_summary(made, prompt.size(), memory);
      print_tokens(made.tokens, text.has_value());
    }
  });
  return 0;
}

}  // namespace katt::impl
