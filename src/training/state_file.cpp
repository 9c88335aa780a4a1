#include "training/state_file.hpp"

#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <string>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace katt::training {

namespace {

using Metadata = std::map<std::string, std::string>;

/// The columns of a log, one value a step.
constexpr std::array<std::pair<const char*, float StepLog::*>, 5> columns{
    {{"log.loss", &StepLog::loss},
     {"log.grad_norm", &StepLog::grad_norm},
     {"log.lr", &StepLog::rate},
     {"log.time_s", &StepLog::time_s},
     {"log.loss_scale", &StepLog::loss_scale}}};
constexpr const char* skipped_column = "log.skipped";
constexpr std::int64_t max_steps = std::int64_t{1} << 32;

std::string number(std::int64_t value) { return std::to_string(value); }

/// What must be the same when a run is continued.
Metadata settings_of(const TrainOptions& options) {
  return {{"batch", number(options.shape.batch)},
          {"seq", number(options.shape.seq)},
          {"accumulation", number(options.accumulation)},
          {"dtype", std::string(name_of(options.dtype))}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  io::AtomicFile target(path);
  std::ofstream out(target.temporary(), std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(path.string() + ": cannot be written");
  target.commit();
}

class StateReader {
 public:
  explicit StateReader(const std::filesystem::path& path) : path_(path), file_(path) {}

  void expect(const Metadata& settings) const {
    for (const auto& [key, value] : settings) {
      if (text(key) != value) {
        throw InputError(path_.string() + ": " + key + ": holds " + text(key) + ", expected " +
                         value + " to continue with the same steps");
      }
    }
  }

  [[nodiscard]] std::int64_t integer(const std::string& key) const {
    const std::string value = text(key);
    std::int64_t result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < 0 ||
        result > max_steps) {
      throw InputError(path_.string() + ": " + key + ": holds \"" + value +
                       "\", expected a number of steps");
    }
    return result;
  }

  [[nodiscard]] std::vector<float> flat(const nn::ParameterLayout& layout,
                                        const std::string& prefix) const {
    std::vector<float> values(static_cast<std::size_t>(layout.size()));
    for (const nn::Parameter& parameter : layout.parameters()) {
      file_.read(prefix + parameter.name, parameter.shape,
                 std::span(values).subspan(static_cast<std::size_t>(parameter.offset),
                                           static_cast<std::size_t>(parameter.size())));
    }
    return values;
  }

  [[nodiscard]] std::vector<float> column(const char* name, std::int64_t count) const {
    file_.check(name, {count});  // before so much is allocated
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

  std::filesystem::path path_;
  io::Safetensors file_;
};

}  // namespace

void write_run(const std::filesystem::path& folder, const nn::LlamaConfig& config,
               const nn::ParameterLayout& layout, const TrainOptions& options,
               const TrainingState& state) {
  write_text(folder / "config.json", nn::config_json_f32(config));
  io::write_safetensors(folder / "model.safetensors",
                        nn::named_tensors(layout, state.parameters, ""), {{"format", "pt"}});

  std::vector<io::SafetensorsTensor> tensors;
  const auto append = [&](std::span<const float> values, const std::string& prefix) {
    for (auto& tensor : nn::named_tensors(layout, values, prefix)) tensors.push_back(tensor);
  };
  append(state.parameters, "parameters.");
  append(state.m, "m.");
  append(state.v, "v.");
  const auto steps = static_cast<std::int64_t>(state.log.size());
  std::map<std::string, std::vector<float>> logs;
  for (const StepLog& step : state.log) {
    for (const auto& [name, member] : columns) logs[name].push_back(step.*member);
    logs[skipped_column].push_back(step.skipped ? 1.0F : 0.0F);
  }
  for (const auto& [name, values] : logs) {
    tensors.push_back({.name = name, .dtype = Dtype::f32, .shape = {steps}, .values = values});
  }
  Metadata metadata = settings_of(options);
  metadata["steps"] = number(steps);
  metadata["updates"] = number(state.updates);
  metadata["good_steps"] = number(state.good_steps);
  // a power of two between 2^-14 and 2^24, or what the user gave: exact in f32 tensors, too
  const auto scale = static_cast<float>(state.loss_scale);
  tensors.push_back(
      {.name = "loss_scale", .dtype = Dtype::f32, .shape = {1}, .values = {&scale, 1}});
  io::write_safetensors(folder / state_file, tensors, metadata);
}

TrainingState read_state(const std::filesystem::path& folder, const nn::ParameterLayout& layout,
                         const TrainOptions& options) {
  const StateReader reader(folder / state_file);
  reader.expect(settings_of(options));
  TrainingState state;
  state.parameters = reader.flat(layout, "parameters.");
  state.m = reader.flat(layout, "m.");
  state.v = reader.flat(layout, "v.");
  state.updates = reader.integer("updates");
  state.good_steps = reader.integer("good_steps");
  state.loss_scale = reader.column("loss_scale", 1)[0];
  const std::int64_t steps = reader.integer("steps");
  if (steps == 0) return state;
  const std::vector<float> skipped = reader.column(skipped_column, steps);
  state.log.resize(skipped.size());
  for (std::size_t i = 0; i < skipped.size(); ++i) state.log[i].skipped = skipped[i] != 0.0F;
  for (const auto& [name, member] : columns) {
    const std::vector<float> values = reader.column(name, steps);
    for (std::size_t i = 0; i < values.size(); ++i) state.log[i].*member = values[i];
  }
  return state;
}

}  // namespace katt::training
