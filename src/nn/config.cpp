#include "nn/config.hpp"

#include <cmath>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/json_input.hpp"
#include "io/printable.hpp"
#include "ops/attention/attention.hpp"

namespace katt::nn {

namespace {

using nlohmann::json;

constexpr std::size_t max_config_bytes = 1 << 20;
constexpr int max_depth = 16;
/// No size of a real model is near this limit, and no product of a few such sizes overflows.
constexpr std::int64_t max_size = 1 << 22;
constexpr std::int64_t max_layers = 1 << 12;

/// One JSON object with the path of its keys, for messages.
class Table {
 public:
  Table(std::string where, const json& object) : where_(std::move(where)), object_(object) {}

  /// The value of a key; null when it is missing or null.
  [[nodiscard]] const json& at(const char* key) const {
    static const json null;
    const auto found = object_.find(key);
    return found == object_.end() ? null : *found;
  }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    const json& value = at(key);
    const bool missing = !object_.contains(key);
    throw InputError(where_ + key + ": " +
                     (missing ? "is missing" : "holds " + io::impl::printable(value.dump())) +
                     ", expected " + expected);
  }

  [[nodiscard]] std::int64_t size(const char* key, std::int64_t largest,
                                  std::optional<std::int64_t> fallback = std::nullopt) const {
    const json& value = at(key);
    if (value.is_null() && fallback) return *fallback;
    // As a double, no integer of the text is out of range.
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!value.is_number_integer() || number < 1 || number > static_cast<double>(largest)) {
      refuse(key, "an integer of 1 to " + std::to_string(largest));
    }
    return value.get<std::int64_t>();
  }

  [[nodiscard]] double positive(const char* key, std::optional<double> fallback) const {
    const json& value = at(key);
    if (value.is_null() && fallback) return *fallback;
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
      refuse(key, "a positive number");
    }
    return value.get<double>();
  }

  [[nodiscard]] bool truth(const char* key, bool fallback) const {
    const json& value = at(key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) refuse(key, "true or false");
    return value.get<bool>();
  }

  /// Refuses any other value of a key than the given one, or none.
  void only(const char* key, const json& supported) const {
    const json& value = at(key);
    if (!value.is_null() && value != supported) refuse(key, supported.dump() + " or nothing");
  }

  void none(const char* key) const {
    if (!at(key).is_null()) refuse(key, "nothing: it is not supported");
  }
  void none_that_begin_with(std::string_view beginning) const {
    for (const auto& [key, value] : object_.items()) {
      if (key.starts_with(beginning)) none(key.c_str());
    }
  }

 private:
  std::string where_;
  const json& object_;
};

void check_kind(const Table& table) {
  if (table.at("model_type") != "llama") table.refuse("model_type", "\"llama\"");
  const json& architectures = table.at("architectures");
  if (!architectures.is_null() && architectures != json::array({"LlamaForCausalLM"})) {
    table.refuse("architectures", "[\"LlamaForCausalLM\"]");
  }
  table.only("hidden_act", "silu");
  table.only("attention_dropout", 0.0);
  table.only("pretraining_tp", 1);
  table.only("partial_rotary_factor", 1.0);
  for (const char* key : {"sliding_window", "num_local_experts"}) table.none(key);
  table.none_that_begin_with("attn_logit_");  // Gemma's caps
  table.none_that_begin_with("final_logit_");
}

constexpr const char* quantization_key = "quantization_config";

/// True when `quantization_config` is that of a BitNet with full-precision weights, the
/// BitNetQuantConfig of transformers with linear_class "autobitlinear" and quantization_mode
/// "online".
bool is_ternary(const std::string& name, const Table& top) {
  const json& value = top.at(quantization_key);
  if (value.is_null()) return false;
  if (!value.is_object()) top.refuse(quantization_key, "an object");
  const Table table(name + ": " + quantization_key + "/", value);
  if (table.at("quant_method") != "bitnet") table.refuse("quant_method", "\"bitnet\"");
  // transformers takes a missing key for packed weights
  if (table.at("linear_class") != "autobitlinear") {
    table.refuse("linear_class", "\"autobitlinear\"");
  }
  if (table.at("quantization_mode") != "online") table.refuse("quantization_mode", "\"online\"");
  table.only("use_rms_norm", false);
  const json& kept = table.at("modules_to_not_convert");
  if (!kept.is_null() && kept != json::array({"lm_head"})) {
    table.refuse("modules_to_not_convert", "[\"lm_head\"] or nothing");
  }
  return true;
}

/// `rope_parameters`, or the values of the older `rope_theta` and `rope_scaling`.
rope::FrequencyArgs rope_of(const std::string& name, const Table& top,
                            std::int64_t max_position_embeddings) {
  rope::FrequencyArgs rope{.precision = rope::AnglePrecision::f32};
  rope.theta = top.positive("rope_theta", 10000.0);
  const char* key = top.at("rope_parameters").is_null() ? "rope_scaling" : "rope_parameters";
  const json& parameters = top.at(key);
  if (parameters.is_null()) return rope;
  const json& older = top.at("rope_scaling");
  if (!older.is_null() && older != parameters) {
    top.refuse("rope_scaling", "nothing beside rope_parameters, or the same");
  }
  if (!parameters.is_object()) top.refuse(key, "an object");
  const Table table(name + ": " + key + "/", parameters);
  rope.theta = table.positive("rope_theta", rope.theta);
  table.only("partial_rotary_factor", 1.0);
  const char* type_key = table.at("rope_type").is_null() ? "type" : "rope_type";
  const json& type = table.at(type_key);
  if (type.is_null() || type == "default") return rope;
  if (type != "llama3") table.refuse(type_key, "\"default\" or \"llama3\"");
  rope.scaling = rope::Scaling::llama3;
  rope.factor = table.positive("factor", std::nullopt);
  rope.low_freq_factor = table.positive("low_freq_factor", std::nullopt);
  rope.high_freq_factor = table.positive("high_freq_factor", std::nullopt);
  // As in transformers, that of the whole configuration goes before that of the table.
  constexpr const char* original = "original_max_position_embeddings";
  constexpr std::int64_t most = std::int64_t{1} << 40;
  rope.original_max_position =
      top.size(original, most, table.size(original, most, max_position_embeddings));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    table.refuse("high_freq_factor", "more than low_freq_factor");
  }
  return rope;
}

/// Adds the missing tokens of eos_token_id, which is an integer, a list of them or null. Ignores an
/// id outside of the vocabulary.
void add_eos(const Table& table, LlamaConfig& config) {
  constexpr const char* key = "eos_token_id";
  const json& value = table.at(key);
  if (value.is_null()) return;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer()) table.refuse(key, "a token id, a list of them or null");
    const double token = id.get<double>();  // no integer of the text is out of range
    if (token < 0 || token >= static_cast<double>(config.vocab_size)) continue;
    if (!config.is_end(id.get<std::int64_t>())) {
      config.eos_token_ids.push_back(id.get<std::int64_t>());
    }
  }
}

/// A negative number counts from the end of the vocabulary, as in PyTorch.
std::int64_t pad_of(const Table& table, std::int64_t vocab_size) {
  constexpr const char* key = "pad_token_id";
  const json& value = table.at(key);
  if (value.is_null()) return -1;
  if (!value.is_number_integer()) table.refuse(key, "a token id or null");
  const double token = value.get<double>() + (value.get<double>() < 0 ? vocab_size : 0);
  return token >= 0 && token < static_cast<double>(vocab_size) ? static_cast<std::int64_t>(token)
                                                               : -1;
}

}  // namespace

LlamaConfig parse_config(const std::string& name, const std::string& text) {
  const json root = io::impl::parse_json(name, text, max_depth);
  if (!root.is_object()) throw InputError(name + ": expected a JSON object");
  const Table table(name + ": ", root);
  check_kind(table);

  LlamaConfig config;
  config.json = text;
  config.vocab_size = table.size("vocab_size", max_size);
  config.hidden_size = table.size("hidden_size", max_size);
  config.intermediate_size = table.size("intermediate_size", max_size);
  config.num_hidden_layers = table.size("num_hidden_layers", max_layers);
  config.num_attention_heads = table.size("num_attention_heads", max_layers);
  config.num_key_value_heads =
      table.size("num_key_value_heads", max_layers, config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    table.refuse("num_key_value_heads",
                 "a divisor of num_attention_heads " + std::to_string(config.num_attention_heads));
  }
  if (table.at("head_dim").is_null() && config.hidden_size % config.num_attention_heads != 0) {
    table.refuse("hidden_size", "a multiple of num_attention_heads " +
                                    std::to_string(config.num_attention_heads) +
                                    " where no head_dim is given");
  }
  config.head_dim =
      table.size("head_dim", max_size, config.hidden_size / config.num_attention_heads);
  if (config.head_dim % 8 != 0 || config.head_dim > attention::max_head_dim) {
    throw InputError(name + ": head_dim: is " + std::to_string(config.head_dim) +
                     ", expected a multiple of 8 up to " + std::to_string(attention::max_head_dim));
  }
  config.max_position_embeddings =
      table.size("max_position_embeddings", std::int64_t{1} << 30, config.max_position_embeddings);
  config.rms_norm_eps = static_cast<float>(table.positive("rms_norm_eps", config.rms_norm_eps));
  config.initializer_range =
      static_cast<float>(table.positive("initializer_range", config.initializer_range));
  config.tie_word_embeddings = table.truth("tie_word_embeddings", false);
  config.attention_bias = table.truth("attention_bias", false);
  config.mlp_bias = table.truth("mlp_bias", false);
  config.ternary = is_ternary(name, table);
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.ternary && table.truth(key, false)) {
      table.refuse(key, "false: ternary projections have no biases");
    }
  }
  config.rope = rope_of(name, table, config.max_position_embeddings);
  add_eos(table, config);
  config.pad_token_id = pad_of(table, config.vocab_size);
  return config;
}

LlamaConfig read_config(const std::filesystem::path& folder) {
  const auto text_of = [](const std::filesystem::path& path) {
    return io::impl::read_text(path, max_config_bytes, "a Hugging Face configuration");
  };
  const auto path = folder / "config.json";
  LlamaConfig config = parse_config(path.string(), text_of(path));
  const auto generation = folder / "generation_config.json";
  if (std::error_code ignored; std::filesystem::exists(generation, ignored)) {
    const std::string name = generation.string();
    const json root = io::impl::parse_json(name, text_of(generation), max_depth);
    if (!root.is_object()) throw InputError(name + ": expected a JSON object");
    add_eos(Table(name + ": ", root), config);
  }
  return config;
}

LlamaConfig with_ternary(LlamaConfig config) {
  if (config.attention_bias || config.mlp_bias) {
    throw InputError("--ternary 1: the model has " +
                     std::string(config.attention_bias ? "attention_bias" : "mlp_bias") +
                     " true, expected projections without biases");
  }
  config.ternary = true;
  return config;
}

std::string config_json_f32(const LlamaConfig& config) {
  auto root = nlohmann::ordered_json::parse(config.json);
  if (config.ternary && (!root.contains(quantization_key) || root[quantization_key].is_null())) {
    root[quantization_key] = {{"quant_method", "bitnet"},
                              {"linear_class", "autobitlinear"},
                              {"quantization_mode", "online"}};
  }
  if (root.contains("torch_dtype")) root["torch_dtype"] = "float32";
  if (root.contains("dtype") || !root.contains("torch_dtype")) root["dtype"] = "float32";
  return root.dump(2) + "\n";
}

}  // namespace katt::nn
