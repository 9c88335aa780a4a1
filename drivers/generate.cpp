#include "nn/inference/generate.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/execution.hpp"
#include "core/text.hpp"
#include "drivers/options/layout_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/options/prompts.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/model_profile.hpp"
#include "drivers/runtime/runtime.hpp"
#include "drivers/runtime/scratch.hpp"
#include "io/hdf5/case_file.hpp"
#include "measure/profile.hpp"
#include "memory/tracker.hpp"
#include "nn/inference/sampling.hpp"

namespace katt::impl {
namespace {

constexpr const char* generate_usage =
    "katt generate --model DIR --tokens 1,2,3 --max-new-tokens N";
/// Default of --batch, the most prompts that continue at once: products read the weights once for
/// this many rows, and each row keeps the bits that it has alone
/// (ops/linear/gemm/inner/products.hpp).
constexpr std::int64_t default_batch = 64;
/// Query heads of a K/V head that attention to a paged cache takes (ops/attention/decode/decode.cpp).
constexpr std::int64_t most_group = 64;
constexpr std::int64_t bytes_of_a_text = 256;
constexpr const char* no_tokenizer =
    "katt has no tokenizer: --tokens takes ids, and katt.Llama in Python takes a text";

/// Memory of a run in bytes; the peak is measured.
struct Memory {
  std::size_t weights, cache, activations, workspace, peak;
};

/// The continuations of all prompts.
struct Made {
  Prompts tokens;
  std::size_t prompt_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  std::int64_t steps = 0;  ///< seconds of decoding
  std::string submission;  ///< submission of a decoded token's launches: Session::submission()

  [[nodiscard]] std::size_t new_tokens() const {
    std::size_t count = 0;
    for (const auto& of_prompt : tokens) count += of_prompt.size();
    return count;
  }
  /// The first token of a prompt comes from the prefill.
  [[nodiscard]] std::size_t decoded() const { return new_tokens() - tokens.size(); }
};

double rate(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void print_summary(const Made& made, const Memory& memory, Backend backend) {
  const auto bytes = [](std::size_t n) { return bench::human_bytes(static_cast<double>(n)); };
  std::printf("prefill  %zu tokens in %s, %.0f tokens/s\n", made.prompt_tokens,
              bench::human_seconds(made.prefill_s).c_str(),
              rate(made.prompt_tokens, made.prefill_s));
  std::printf("decode   %zu tokens in %s, %.0f tokens/s\n", made.decoded(),
              bench::human_seconds(made.decode_s).c_str(), rate(made.decoded(), made.decode_s));
  if (backend == Backend::cuda) std::printf("token    submitted as %s\n", made.submission.c_str());
  if (made.tokens.size() > 1) {
    std::printf("batch    %zu prompts, %lld steps of %.1f sequences\n", made.tokens.size(),
                static_cast<long long>(made.steps),
                made.steps > 0
                    ? static_cast<double>(made.decoded()) / static_cast<double>(made.steps)
                    : 0.0);
  }
  std::printf("memory   weights %s, cache %s, activations %s, workspace %s; peak %s\n",
              bytes(memory.weights).c_str(), bytes(memory.cache).c_str(),
              bytes(memory.activations).c_str(), bytes(memory.workspace).c_str(),
              bytes(memory.peak).c_str());
}

/// HDF5: the times as attributes, and the profile.
void write_log(const std::filesystem::path& path, const Made& made, const ModelOptions& options,
               const io::Profile& profile) {
  io::TensorFile file;
  describe_run(file, "generate", options.backend, options.threads, options.dtype, profile);
  file.set_attribute("prompt", static_cast<std::int64_t>(made.prompt_tokens));
  file.set_attribute("new_tokens", static_cast<std::int64_t>(made.new_tokens()));
  file.set_attribute("prefill_s", made.prefill_s);
  file.set_attribute("decode_s", made.decode_s);
  file.set_attribute("decode_submission", made.submission);
  file.write(path);
}

/// HDF5: the new tokens, (prompts, most new tokens), −1 behind the end of a sequence that ended.
void write_tokens(const std::filesystem::path& path, const Made& made) {
  std::size_t longest = 0;
  for (const auto& of_prompt : made.tokens) longest = std::max(longest, of_prompt.size());
  io::IntTensor table{{std::ssize(made.tokens), static_cast<std::int64_t>(longest)}, {}};
  for (const auto& of_prompt : made.tokens) {
    table.values.insert(table.values.end(), of_prompt.begin(), of_prompt.end());
    table.values.resize(table.values.size() + longest - of_prompt.size(), -1);
  }
  io::TensorFile file;
  file.set_integers("tokens", std::move(table));
  file.write(path);
}

/// Continues the prompts of this rank's replica, each as if it were alone.
template <class Exec>
nn::GeneratedBatch continue_share(nn::Session<Exec>& session, const nn::LlamaConfig& config,
                                  const Prompts& prompts, const ranks::Communicator& replicas,
                                  const nn::GenerateOptions& how,
                                  const std::filesystem::path& file) {
  const auto cut = [&](int replica) {
    return static_cast<std::size_t>((std::ssize(prompts) * replica + replicas.size() - 1) /
                                    replicas.size());
  };
  const std::size_t begin = cut(replicas.rank());
  try {
    return nn::generate(session, config,
                        std::span(prompts).subspan(begin, cut(replicas.rank() + 1) - begin), how);
  } catch (const nn::NotFiniteError& error) {
    throw std::runtime_error(line_of(file, begin + error.sequence) + ": " + error.what());
  }
}

/// The continuations of all replicas, in the order of the prompts.
Prompts of_all(const ranks::Communicator& replicas, const Prompts& made) {
  Prompts all;
  const std::string own = nlohmann::json(made).dump();
  for (int replica = 0; replica < replicas.size(); ++replica) {
    const auto part = nlohmann::json::parse(replicas.broadcast_text(own, replica)).get<Prompts>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void print_json(const nlohmann::ordered_json& tokens, const Made& made, const Memory& memory) {
  const nlohmann::ordered_json object{
      {"tokens", tokens},
      {"prefill_s", made.prefill_s},
      {"decode_s", made.decode_s},
      {"prefill_tokens_s", rate(made.prompt_tokens, made.prefill_s)},
      {"decode_tokens_s", rate(made.decoded(), made.decode_s)},
      {"decode_submission", made.submission},
      {"weight_bytes", memory.weights},
      {"cache_bytes", memory.cache},
      {"activation_bytes", memory.activations},
      {"workspace_bytes", memory.workspace},
      {"peak_bytes", memory.peak}};
  std::printf("%s\n", object.dump().c_str());
}

/// Keeps printable ASCII and ends of lines, and writes other bytes as \xNN: a model may produce any
/// byte.
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
  CommandLine line(
      "katt generate",
      "Continue a prompt, or several, with a LLaMA; the last line is the new ids, a line a "
      "prompt");
  ModelOptions options;
  nn::GenerateOptions how;
  bool no_cache = false;
  bool no_graph = false;
  bool profile = false;
  LayoutOptions ranks;
  options.add_to(line);
  ranks.add_inference_to(line);
  line.option("--tokens", "token ids of the prompt: 1,2,3");
  line.option("--text", "prompt as a text, for models of bytes; the answer is one, too");
  line.option("--prompt", "", "");  // not in the help: what others call a text
  line.option("--prompts", "file of prompts, token ids, one a line: all in one batch", files({""}));
  line.option("--batch",
              "most prompts continued at once (default: 64; in 16 bits tokens may differ beyond)");
  line.option("--window", "with --prompts: positions kept of a sequence (default: all)");
  line.option("--sinks", "with --window: first positions that are kept, too (default: 0)");
  line.option("--out", "HDF5 file for the dataset tokens, (prompts, new tokens), -1 behind an end",
              files({".h5"}));
  line.option("--max-new-tokens", "tokens to generate (default: 32)");
  line.option("--temperature", "0 (default): always the most likely token");
  line.option("--top-k", "sample from the k most likely tokens (default: 0, all)");
  line.option("--top-p", "sample from the fewest that hold this probability (default: 1)");
  line.option("--chunk", "tokens of the prompt taken at a time (default: 512)");
  line.flag("--no-cache", no_cache, "compute the whole text again for every token");
  line.option("--warm-up", "continuations of --tokens before the one that is timed (default: 0)");
  line.flag("--no-graph", no_graph, "on a GPU: submit the launches of a token one by one");
  line.flag("--profile", profile, "tell where the time goes, by phase and operator");
  line.option("--log", "HDF5 file for the profile and the times", files({".h5"}));
  bool overwrite = false;
  line.flag("--overwrite", overwrite, "replace the files of --out and --log");
  line.flag("--stop-at-eos", how.stop_at_eos, "stop after the model's end-of-sequence token");
  line.example("katt generate --model DIR --tokens 1,2,3 --max-new-tokens 64",
               "times, memory and the new ids; --quiet: the ids alone");
  line.example("katt generate --model DIR --prompts FILE --max-new-tokens 64",
               "a prompt a line, in one batch");
  line.example("katt generate --model DIR --tokens 1,2,3 --temperature 0.8 --top-p 0.95 --seed 7",
               "sampled tokens");
  if (!line.parse(invocation)) return 0;
  if (line.text("--prompt"))
    throw InputError("--prompt: is no option; " + std::string(no_tokenizer));
  options.resolve(line, generate_usage);
  ranks.resolve(line);
  const auto& tokens = line.text("--tokens");
  const auto& text = line.text("--text");
  const auto& prompts_file = line.text("--prompts");
  if (int{tokens.has_value()} + int{text.has_value()} + int{prompts_file.has_value()} != 1) {
    throw InputError("--tokens or --text or --prompts: expected one of them: " +
                     std::string(generate_usage));
  }
  const std::int64_t warm_ups = line.count("--warm-up", 0, 0);
  if (warm_ups > 0 && prompts_file) throw InputError("--warm-up: expected without --prompts");
  for (const std::string name : {"--batch", "--window", "--sinks"}) {
    if (line.text(name) && !prompts_file) throw InputError(name + ": expected with --prompts");
  }
  if (no_cache && prompts_file) throw InputError("--no-cache: expected without --prompts");
  Prompts prompts;
  if (tokens) prompts = {parse_tokens(*tokens)};
  if (text) prompts = {{}};
  for (const char byte : text.value_or("")) {
    prompts.front().push_back(static_cast<unsigned char>(byte));
  }
  if (prompts_file) prompts = read_prompts(*prompts_file);
  how.max_new_tokens = line.count("--max-new-tokens", 1, 32);
  how.sampling = {.temperature = line.number("--temperature", 0, 1e6, 0),
                  .top_k = line.count("--top-k", 0, 0),
                  .top_p = line.number("--top-p", 0, 1, 1),
                  .seed = options.seed};
  (void)nn::Sampler(how.sampling);  // refuses what it cannot take before a model is loaded
  how.use_cache = !no_cache;
  how.adapts_threads = !line.text("--threads");
  const std::int64_t most = line.count("--chunk", 1, 512);
  const std::int64_t batch = std::min(line.count("--batch", 1, default_batch), std::ssize(prompts));
  const std::int64_t window = line.count("--window", 1, 0);
  const std::int64_t sinks = line.count("--sinks", 0, 0);
  if (sinks > 0 && window == 0) throw InputError("--sinks: expected with --window");
  nn::SessionOptions of_session{.capacity = std::ssize(prompts.front()) + how.max_new_tokens};
  if (prompts_file) {
    of_session = nn::session_for(prompts, how.max_new_tokens, batch, window, sinks);
  }
  for (std::size_t i = 0; of_session.window > 0 && i < prompts.size(); ++i) {
    if (std::ssize(prompts[i]) <= most) continue;
    throw InputError(line_of(*prompts_file, i) + ": holds " + std::to_string(prompts[i].size()) +
                     " tokens, expected at most " + std::to_string(most) +
                     ", --chunk, with --window");
  }
  std::vector<io::NamedPath> inputs{{"--model", options.folder}}, targets;
  if (prompts_file) inputs.push_back({"--prompts", *prompts_file});
  const auto& out = line.text("--out");
  const auto& log = line.text("--log");
  if (out) targets.push_back({"--out", *out});
  if (log) targets.push_back({"--log", *log});
  const io::Outputs outputs = claim_outputs(targets, inputs, overwrite);
  const Replicas replicas = ranks.replicas();

  const Runtime runtime(options.threads, options.device);
  visit_backend(options.backend, options.threads, [&](const auto& exec) {
    allocate_scratch(exec);
    if (!text) {
      const nn::LlamaConfig config = nn::read_config(options.folder);
      const std::int64_t vocabulary = config.vocab_size;
      const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
      if (prompts_file && group > most_group) {
        throw InputError("--prompts: the model has " + std::to_string(group) +
                         " query heads a K/V head, expected at most " + std::to_string(most_group) +
                         "; --tokens continues one prompt");
      }
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        check_vocabulary(prompts[i], prompts_file ? line_of(*prompts_file, i) : "--tokens",
                         vocabulary);
      }
    }
    of_session.chunk = most;
    of_session.graphs = !no_graph;
    of_session.groups = replicas.model;
    check_inference_fits(exec, options, of_session);
    const memory::Scope scope;
    const auto model =
        nn::open_model(exec, options.folder, options.dtype, options.seed, of_session.groups);
    if (text && model.config().vocab_size != bytes_of_a_text) {
      throw InputError("--text: the model has a vocabulary of " +
                       std::to_string(model.config().vocab_size) + ", expected 256, bytes; " +
                       no_tokenizer);
    }
    nn::Session session(model, of_session);
    tell_threads(options.threads);
    tell_note(nn::parameters_note(options.folder));
    tell_note(positions_note(model.config(), of_session.capacity));
    for (const std::string name : {"--top-k", "--top-p"}) {
      if (line.text(name) && how.sampling.is_greedy()) {
        tell_note(name + " changes nothing: at --temperature 0 the most likely token is taken");
      }
    }
    tell_more(options.resolved_text());
    if (how.stop_at_eos && model.config().eos_token_ids.empty()) {
      tell_note("--stop-at-eos: " + options.folder.string() +
                " names no eos_token_id of its vocabulary: all --max-new-tokens are made");
    }
    bench::Profiler profiler;
    Made made;
    for (const auto& prompt : prompts) made.prompt_tokens += prompt.size();
    if (prompts_file) {
      if (profile) profiler.start();
      auto all =
          continue_share(session, model.config(), prompts, replicas.others, how, *prompts_file);
      made.tokens = of_all(replicas.others, all.tokens);
      made.prefill_s = all.prefill_s;
      made.decode_s = all.decode_s;
      made.steps = all.steps;
    } else {
      for (std::int64_t i = 0; i < warm_ups; ++i) {
        (void)nn::generate(session, model.config(), prompts.front(), how);
        session.clear();
      }
      if (profile) profiler.start();
      auto one = nn::generate(session, model.config(), prompts.front(), how);
      made.tokens = {std::move(one.tokens)};
      made.prefill_s = one.prefill_s;
      made.decode_s = one.decode_s;
    }
    profiler.stop();
    made.submission = profile ? "launches: a profile is told of each" : session.submission();
    const Memory memory{model.bytes(), session.cache_bytes(), session.activation_bytes(),
                        session.workspace_bytes(), scope.peak_bytes()};
    io::Profile where;
    if (profile) {
      where = profiler.mean(1, made.prefill_s + made.decode_s);
      tell_profile(where, options.backend, options.threads, options.dtype);
    }
    if (log && ranks::world().rank() == 0) write_log(*log, made, options, where);
    if (out && ranks::world().rank() == 0) write_tokens(*out, made);
    if (options.json) {
      print_json(prompts_file ? nlohmann::ordered_json(made.tokens)
                              : nlohmann::ordered_json(made.tokens.front()),
                 made, memory);
    } else {
      if (messages() != nullptr) print_summary(made, memory, options.backend);
      for (const auto& of_prompt : made.tokens) print_tokens(of_prompt, text.has_value());
    }
  });
  return 0;
}

}  // namespace katt::impl
