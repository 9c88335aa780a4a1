#include "training/state_file.hpp"

#include <array>
#include <regex>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace katt::training {

namespace {

using Metadata = std::map<std::string, std::string>;

/// The columns of a log, one value a step.
constexpr std::array<std::pair<const char*, float StepLog::*>, 6> columns{
    {{"log.loss", &StepLog::loss},
     {"log.grad_norm", &StepLog::grad_norm},
     {"log.lr", &StepLog::rate},
     {"log.time_s", &StepLog::time_s},
     {"log.loss_scale", &StepLog::loss_scale},
     {"log.pipeline_idle", &StepLog::pipeline_idle}}};
constexpr const char* skipped_column = "log.skipped";
constexpr const char* scale_tensor = "loss_scale";
constexpr std::int64_t max_steps = std::int64_t{1} << 32;

std::string number(std::int64_t value) { return std::to_string(value); }
std::string number(double value) { return bench::to_text(value); }

/// The options that must be the same when a run continues.
Metadata settings_of(const TrainOptions& options) {
  return {{"batch", number(options.shape.batch)},
          {"seq", number(options.shape.seq)},
          {"accumulation", number(options.accumulation)},
          {"dtype", std::string(name_of(options.dtype))}};
}

/// The same for options that older states do not hold: these states used the defaults.
Metadata newer_settings_of(const nn::LlamaConfig& config, const TrainOptions& options) {
  return {{"master_dtype", std::string(name_of(options.master_dtype))},
          {"ternary", config.ternary ? "1" : "0"},
          {"growth_factor", number(options.scaling.growth)},
          {"backoff_factor", number(options.scaling.backoff)},
          {"growth_interval", number(options.scaling.growth_interval)}};
}

constexpr const char* scaling_key = "loss_scaling";
constexpr const char* model_key = "model";

/// Text of a model's properties that shapes of tensors do not tell.
std::string model_of(const nn::LlamaConfig& config) {
  const rope::FrequencyArgs& rope = config.rope;
  std::string text = "layers " + number(config.num_hidden_layers) + ", heads " +
                     number(config.num_attention_heads) + " of " + number(config.head_dim) +
                     ", kv_heads " + number(config.num_key_value_heads) + ", eps " +
                     number(config.rms_norm_eps) + ", tied " +
                     (config.tie_word_embeddings ? "1" : "0") + ", rope " + number(rope.theta);
  if (rope.scaling == rope::Scaling::none) return text;
  for (const double of : {rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                          static_cast<double>(rope.original_max_position)}) {
    text += " " + number(of);
  }
  return text;
}

std::string scaling_of(const TrainOptions& options) {
  return options.scaling.is_dynamic ? "dynamic" : "static";
}

class StateReader {
 public:
  StateReader(const std::filesystem::path& path, const io::Safetensors& file)
      : path_(path), file_(file) {}

  /// `otherwise`: the value of a key that the file does not hold.
  void expect(const Metadata& settings, const Metadata& otherwise = {}) const {
    for (const auto& [key, value] : settings) {
      const bool is_old = otherwise.contains(key) && !file_.metadata().contains(key);
      const std::string held = is_old ? otherwise.at(key) : text(key);
      if (held != value) {
        throw InputError(path_.string() + ": " + key + ": holds " + held + ", expected " + value +
                         " to continue with the same steps");
      }
    }
  }

  [[nodiscard]] std::int64_t integer(const std::string& key) const {
    const std::string value = text(key);
    const bench::Parsed parsed = bench::parse_integer(value);
    if (!parsed.problem.empty() || parsed.integer < 0 || parsed.integer > max_steps) {
      throw InputError(path_.string() + ": " + key + ": holds \"" + value +
                       "\", expected a number of steps");
    }
    return parsed.integer;
  }

  [[nodiscard]] std::vector<float> column(const char* name, std::int64_t count) const {
    file_.check(name, {count});  // before this much is allocated
    std::vector<float> values(static_cast<std::size_t>(count));
    file_.read(name, {count}, values);
    return values;
  }

 private:
  [[nodiscard]] std::string text(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) {
      throw InputError(path_.string() + ": " + key + ": is missing, expected a training state");
    }
    return found->second;
  }

  const std::filesystem::path& path_;
  const io::Safetensors& file_;
};

}  // namespace

bool holds_run(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path file = folder / state_file;
  return std::filesystem::exists(file, ignored) ||
         std::filesystem::exists(io::index_of(file), ignored);
}

std::vector<std::string> shards_in(const std::filesystem::path& folder, const std::string& file) {
  const std::regex shard("\\.?" + std::filesystem::path(file).stem().string() +
                         R"(-(step\d+-(\d+-)?)?\d{5,}-of-\d{5,}\.safetensors(\.katt-\w+\.part)?)");
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (std::regex_match(name, shard)) names.push_back(std::move(name));
  }
  return names;
}

void remove_unfinished(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path model = folder / "model.safetensors";
  if (holds_run(folder) || std::filesystem::exists(model, ignored) ||
      std::filesystem::exists(io::index_of(model), ignored)) {
    return;
  }
  for (const char* file : {"model.safetensors", state_file}) {
    for (const std::string& shard : shards_in(folder, file)) {
      std::filesystem::remove(folder / shard, ignored);
    }
  }
}

StateContents contents_of(const nn::LlamaConfig& config, const TrainOptions& options,
                          const TrainingState& state) {
  StateContents contents;
  for (const StepLog& step : state.log) {
    for (const auto& [name, member] : columns) contents.tensors[name].push_back(step.*member);
    contents.tensors[skipped_column].push_back(step.skipped ? 1.0F : 0.0F);
  }
  // an f32 number between 2^-14 and 2^24, or the user's number
  contents.tensors[scale_tensor] = {static_cast<float>(state.loss_scale)};
  contents.metadata = settings_of(options);
  contents.metadata.merge(newer_settings_of(config, options));
  contents.metadata[scaling_key] = scaling_of(options);
  contents.metadata[model_key] = model_of(config);
  contents.metadata["steps"] = number(std::ssize(state.log));
  contents.metadata["updates"] = number(state.updates);
  contents.metadata["good_steps"] = number(state.good_steps);
  return contents;
}

TrainingState state_of(const std::filesystem::path& path, const io::Safetensors& file,
                       const nn::LlamaConfig& config, const TrainOptions& options) {
  const StateReader reader(path, file);
  reader.expect(settings_of(options));
  reader.expect(newer_settings_of(config, options), newer_settings_of({}, {}));
  TrainingState state;
  state.updates = reader.integer("updates");
  state.good_steps = reader.integer("good_steps");
  state.loss_scale = reader.column(scale_tensor, 1)[0];
  for (const auto& [key, value] :
       Metadata{{scaling_key, scaling_of(options)}, {model_key, model_of(config)}}) {
    if (file.metadata().contains(key))
      reader.expect({{key, value}});  // not from the first versions
  }
  const double scale = LossScaler(options.scaling).scale();
  if (!options.scaling.is_dynamic && state.loss_scale != scale) {
    throw InputError(path.string() + ": " + scale_tensor + ": holds " + number(state.loss_scale) +
                     ", expected " + number(scale) + " to continue with the same steps");
  }
  const std::int64_t steps = reader.integer("steps");
  if (steps == 0) return state;
  const std::vector<float> skipped = reader.column(skipped_column, steps);
  state.log.resize(skipped.size());
  for (std::size_t i = 0; i < skipped.size(); ++i) state.log[i].skipped = skipped[i] != 0.0F;
  for (const auto& [name, member] : columns) {
    if (member == &StepLog::pipeline_idle && !file.has(name)) continue;  // from the first version
    const std::vector<float> values = reader.column(name, steps);
    for (std::size_t i = 0; i < values.size(); ++i) state.log[i].*member = values[i];
  }
  return state;
}

}  // namespace katt::training
