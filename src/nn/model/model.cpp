#include "nn/model/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <regex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "io/printable.hpp"
#include "memory/transfer.hpp"
#include "op/reference/fill.hpp"

namespace katt::nn {

namespace {

constexpr const char* parameter_file = "model.safetensors";

/// Puts tensors into a flat array, or packs them into ternary weights.
template <class Exec>
class Store {
 public:
  Store(const Exec& exec, Dtype dtype, void* data, const TernaryWeights<Exec>* ternary)
      : exec_(exec), transfer_(exec), dtype_(dtype), data_(data), ternary_(ternary) {
    if (ternary == nullptr || ternary->largest() == 0) return;
    values_ = {"katt::nn::unpacked", static_cast<std::size_t>(ternary->largest()) * size_of(dtype),
               false};
  }

  void put(const Parameter& parameter, std::span<const float> values) {
    if (!parameter.is_packed) {
      const std::size_t offset = static_cast<std::size_t>(parameter.offset) * size_of(dtype_);
      return write_elements(transfer_, values, dtype_, static_cast<std::byte*>(data_) + offset);
    }
    write_elements(transfer_, values, dtype_, values_.data());
    transfer_.wait();
    ternary_->pack(exec_, parameter,
                   TensorRef<2>(values_.data(), dtype_, {parameter.shape[0], parameter.shape[1]}));
    exec_.fence("katt::nn::pack");  // before the next tensor overwrites it
  }

 private:
  const Exec& exec_;
  memory::Transfer<Exec> transfer_;
  Dtype dtype_;
  void* data_;
  const TernaryWeights<Exec>* ternary_;
  DeviceMemory<Exec> values_;  ///< a tensor to pack
};

/// Refuses a head beside tied embeddings that is not their copy, which transformers does not tie.
void check_tied(const io::Safetensors& file, const Parameter& embeddings) {
  constexpr const char* head = "lm_head.weight";
  if (!file.has(head)) return;
  file.check(head, embeddings.whole);
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  std::vector<float> ours(piece), theirs(piece);
  for (std::int64_t first = 0; first < embeddings.size(); first += piece) {
    const auto count = static_cast<std::size_t>(std::min(piece, embeddings.size() - first));
    const std::span a(ours.data(), count), b(theirs.data(), count);
    file.read(embeddings.name, embeddings.whole, first, a);
    file.read(head, embeddings.whole, first, b);
    if (std::memcmp(a.data(), b.data(), a.size_bytes()) != 0) {
      throw InputError(std::string(head) + ": differs from " + embeddings.name +
                       ", expected the same with tie_word_embeddings true in config.json");
    }
  }
}

/// Refuses a checkpoint with tensors that the model does not have, except the ones that
/// transformers ignores.
void check_tensors(const LlamaConfig& config, const ParameterLayout& layout,
                   const io::Safetensors& file) {
  std::set<std::string> known;
  for (const Parameter& parameter : layout.parameters()) {
    file.check(parameter.name, parameter.whole);
  }
  const ParameterLayout whole(config);
  for (const Parameter& parameter : whole.parameters()) {
    known.insert(parameter.name);
    if (config.tie_word_embeddings && parameter.name == "model.embed_tokens.weight") {
      check_tied(file, parameter);
    }
  }
  for (const std::string& name : file.names()) {
    const bool is_passed_over = name.ends_with("rotary_emb.inv_freq") ||
                                (config.tie_word_embeddings && name == "lm_head.weight");
    if (!known.contains(name) && !is_passed_over) {
      throw InputError("tensor " + io::impl::printable(name) +
                       ": is not part of the model that config.json describes");
    }
  }
}

/// Standard normal values (Box & Muller 1958) of a hash of (seed, index).
float normal(std::uint64_t seed, std::uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - testing::uniform(seed, 2 * index)));
  const double angle = 2.0 * std::numbers::pi * testing::uniform(seed, 2 * index + 1);
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace

void read_part(const io::Safetensors& file, const std::string& prefix, const Parameter& parameter,
               std::int64_t first, std::span<float> values) {
  // Cut along its columns, a part has a run of every row of the file.
  const std::int64_t run = parameter.axis == 1 ? parameter.shape[1] : parameter.size();
  for (std::int64_t done = 0; done < std::ssize(values);) {
    const std::int64_t at = first + done;
    const std::int64_t count = std::min(run - at % run, std::ssize(values) - done);
    file.read(prefix + parameter.name, parameter.whole, parameter.whole_index(at),
              values.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)));
    done += count;
  }
}

template <class Exec>
Llama<Exec>::Llama(Exec exec, LlamaConfig config, Dtype dtype, const ranks::Groups& groups)
    : exec_(std::move(exec)),
      config_(std::move(config)),
      groups_(groups),
      layout_(config_, Slice(config_, groups.place), config_.ternary),
      dtype_(dtype),
      memory_("katt::nn::parameters", static_cast<std::size_t>(layout_.size()) * size_of(dtype),
              true),
      weights_(bind_weights(config_, layout_, dtype, memory_.data())),
      ternary_(config_, layout_, weights_) {}

template <class Exec>
void load_parameters(const Exec& exec, const LlamaConfig& config, const ParameterLayout& layout,
                     const io::Safetensors& file, Dtype dtype, void* data,
                     const TernaryWeights<Exec>* ternary) {
  check_tensors(config, layout, file);
  Store<Exec> store(exec, dtype, data, ternary);
  std::vector<float> values;
  for (const Parameter& parameter : layout.parameters()) {
    values.resize(static_cast<std::size_t>(parameter.size()));
    read_part(file, "", parameter, 0, values);
    store.put(parameter, values);
  }
}

template <class Exec>
void randomize_parameters(const Exec& exec, const LlamaConfig& config,
                          const ParameterLayout& layout, std::uint64_t seed, Dtype dtype,
                          void* data, const TernaryWeights<Exec>* ternary) {
  Store<Exec> store(exec, dtype, data, ternary);
  std::vector<float> values;
  for (const Parameter& parameter : layout.parameters()) {
    // as torch.nn.Embedding's padding_idx
    const bool has_padding =
        parameter.name == "model.embed_tokens.weight" && config.pad_token_id >= 0;
    const std::int64_t padding =
        has_padding ? config.pad_token_id * config.hidden_size : -config.hidden_size;
    values.resize(static_cast<std::size_t>(parameter.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t place = parameter.whole_index(static_cast<std::int64_t>(i));
      const std::int64_t index = parameter.whole_offset + place;
      const bool is_padding = place >= padding && place < padding + config.hidden_size;
      values[i] = is_padding ? 0.0F
                  : parameter.shape.size() == 2
                      ? config.initializer_range * normal(seed, static_cast<std::uint64_t>(index))
                      : (parameter.name.ends_with(".bias") ? 0.0F : 1.0F);
    }
    store.put(parameter, values);
  }
}

bool holds_parameters(const std::filesystem::path& folder) {
  const auto is_there = [](const std::filesystem::path& file) {  // a link that leads nowhere, too
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::symlink_status(file, ignored));
  };
  return is_there(folder / parameter_file) || is_there(io::index_of(folder / parameter_file));
}

std::string parameters_note(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path file = folder / parameter_file;
  const std::string name = io::impl::printable(folder.string());
  if (!holds_parameters(folder)) {
    return "parameters are random: " + name + " has no " + parameter_file;
  }
  if (!std::filesystem::exists(file, ignored) ||
      !std::filesystem::exists(io::index_of(file), ignored)) {
    return "";
  }
  return name + ": holds " + parameter_file + " and " + io::index_of(parameter_file).string() +
         "; the first is read, as transformers does, and the shards are not";
}

void check_folder(const LlamaConfig& config, const ParameterLayout& layout,
                  const std::filesystem::path& folder) {
  if (holds_parameters(folder)) return check_tensors(config, layout, io::Safetensors(folder));
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename().string();
    static const std::regex weights(
        R"([^.].*\.(safetensors|gguf)|(pytorch_model|model|consolidated).*\.(bin|pt|pth))");
    if (!std::regex_match(file, weights)) continue;
    throw InputError(io::impl::printable(folder.string()) + ": holds " + io::impl::printable(file) +
                     " and no " + parameter_file +
                     "; expected that, its index, or no weights for random ones");
  }
}

template <class Exec>
void initialize_parameters(const Exec& exec, const LlamaConfig& config,
                           const ParameterLayout& layout, const std::filesystem::path& folder,
                           std::uint64_t seed, Dtype dtype, void* data,
                           const TernaryWeights<Exec>* ternary) {
  if (holds_parameters(folder)) {
    load_parameters(exec, config, layout, io::Safetensors(folder), dtype, data, ternary);
  } else {
    randomize_parameters(exec, config, layout, seed, dtype, data, ternary);
  }
}

template <class Exec>
Llama<Exec> open_model(const Exec& exec, const std::filesystem::path& folder, Dtype dtype,
                       std::uint64_t seed, const ranks::Groups& groups) {
  LlamaConfig config = read_config(folder);
  check_layout(config, groups.place.layout);
  check_folder(config, ParameterLayout(config), folder);
  Llama<Exec> model(exec, std::move(config), dtype, groups);
  initialize_parameters(exec, model.config(), model.layout(), folder, seed, dtype, model.data(),
                        &model.ternary());
  return model;
}

#define KATT_INSTANTIATE_MODEL(Exec)                                                            \
  template class Llama<Exec>;                                                                   \
  template void load_parameters<Exec>(const Exec&, const LlamaConfig&, const ParameterLayout&,  \
                                      const io::Safetensors&, Dtype, void*,                     \
                                      const TernaryWeights<Exec>*);                             \
  template void randomize_parameters<Exec>(const Exec&, const LlamaConfig&,                     \
                                           const ParameterLayout&, std::uint64_t, Dtype, void*, \
                                           const TernaryWeights<Exec>*);                        \
  template void initialize_parameters<Exec>(                                                    \
      const Exec&, const LlamaConfig&, const ParameterLayout&, const std::filesystem::path&,    \
      std::uint64_t, Dtype, void*, const TernaryWeights<Exec>*);                                \
  template Llama<Exec> open_model<Exec>(const Exec&, const std::filesystem::path&, Dtype,       \
                                        std::uint64_t, const ranks::Groups&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_MODEL)

}  // namespace katt::nn
