#include "training/checkpointing.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "memory/transfer.hpp"
#include "op/reference/fill.hpp"
#include "ops/rope/rope.hpp"

namespace katt::training {

namespace {

using nn::Recompute;

constexpr std::array names{std::pair(Recompute::n1, "n1"),
                           std::pair(Recompute::qkv, "qkv"),
                           std::pair(Recompute::attended, "attended"),
                           std::pair(Recompute::h, "h"),
                           std::pair(Recompute::n2, "n2"),
                           std::pair(Recompute::gate_up, "gate_up"),
                           std::pair(Recompute::product, "product")};
static_assert(names.size() == nn::recomputable.size());

/// The text as a number, or −1.
std::int64_t count_of(std::string_view text) {
  const bench::Parsed parsed = bench::parse_integer(text);
  return parsed.problem.empty() ? parsed.integer : -1;
}

/// Adds "n1:8" to the tensors that the blocks compute again; returns false for another form.
bool add_named(std::string_view text, std::vector<Recompute>& chosen) {
  const std::size_t colon = text.find(':');
  const auto* const known = std::ranges::find(names, text.substr(0, colon), [](const auto& entry) {
    return std::string_view(entry.second);
  });
  if (colon == std::string_view::npos || known == names.end()) return false;
  const std::int64_t count = count_of(text.substr(colon + 1));
  if (count < 1 || count > std::ssize(chosen)) return false;
  for (auto block = chosen.end() - count; block != chosen.end(); ++block) {
    *block = *block | known->first;
  }
  return true;
}

/// Adds block "3" with all its tensors; returns false for another form.
bool add_block(std::string_view text, std::vector<Recompute>& chosen) {
  const std::int64_t block = count_of(text);
  if (block < 0 || block >= std::ssize(chosen)) return false;
  chosen[static_cast<std::size_t>(block)] = Recompute::all;
  return true;
}

/// One block of a model with the memory for its forward pass.
template <class Exec>
class BlockProbe {
 public:
  BlockProbe(const Exec& exec, const nn::LlamaConfig& one_block, const TrainOptions& options)
      : shape_(options.shape),
        kernels_(options.kernels),
        model_(exec, one_block, options.dtype),
        run_(exec) {
    nn::Arena sizes;
    lay_out(sizes);
    memory_ = {"katt::training::recompute_costs", sizes.bytes(), false};
    nn::Arena arena(memory_.data());
    lay_out(arena);
    nn::randomize_parameters(exec, model_.config(), model_.layout(), 0, options.dtype,
                             model_.data(), &model_.ternary());
    rope::build_cache(exec, model_.config().rope, cos_sin_);
    std::vector<float> x(static_cast<std::size_t>(at_.x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(testing::uniform(1, i)) - 0.5F;
    }
    memory::Transfer<Exec> transfer(exec);
    nn::write_elements(transfer, x, options.dtype, at_.x.data);
  }

  /// Seconds of one launch.
  double time(Recompute part) {
    const nn::Block<Exec> block(model_.config(), kernels_, cos_sin_);
    run_.exec().fence("katt::training::recompute_costs: before");
    const Stopwatch watch;
    block.recompute(run_, model_.weights().blocks[0], at_, shape_, part, scratch_);
    run_.exec().fence("katt::training::recompute_costs: after");
    return watch.seconds();
  }

 private:
  void lay_out(nn::Arena& arena) {
    const nn::LlamaConfig& config = model_.config();
    cos_sin_ = arena.tensor<2>(Dtype::f32, {shape_.seq, config.head_dim});
    at_.x = arena.tensor<2>(model_.dtype(), {shape_.tokens(), config.hidden_size});
    scratch_ = arena.tensor<2>(model_.dtype(), {shape_.tokens(), config.hidden_size});
    nn::lay_out_block(arena, config, model_.dtype(), shape_, Recompute::all, at_);
  }

  nn::BatchShape shape_;
  nn::Kernels kernels_;
  nn::Llama<Exec> model_;
  nn::Runner<Exec> run_;
  nn::DeviceMemory<Exec> memory_;
  TensorRef<2> cos_sin_, scratch_;
  nn::BlockActivations at_;
};

double time_of(const std::vector<RecomputeCost>& costs, Recompute part) {
  return std::ranges::find(costs, part, &RecomputeCost::part)->time_s;
}

std::string text_of(const std::vector<Recompute>& recompute) {
  std::string text;
  for (const auto& [part, name] : names) {
    const auto count = std::ranges::count_if(
        recompute, [part = part](Recompute what) { return nn::has(what, part); });
    if (count == 0) continue;
    if (!text.empty()) text += ',';
    text += std::string(name) + ':' + std::to_string(count);
  }
  return text.empty() ? "none" : text;
}

std::size_t budget_of(const std::string& where, const std::string& text) {
  const bench::Parsed bytes = bench::parse_real(text);
  if (!bytes.problem.empty() || bytes.real < 1 || bytes.real > 1e18) {
    throw InputError(where + ": budget holds \"" + text + "\", expected a number of bytes");
  }
  return static_cast<std::size_t>(bytes.real);
}

}  // namespace

const char* name_of(Recompute part) {
  return std::ranges::find(names, part, [](const auto& entry) { return entry.first; })->second;
}

std::vector<Recompute> parse_checkpointing(const std::string& where, const std::string& text,
                                           std::int64_t blocks) {
  const auto every = [&](Recompute what) {
    return std::vector<Recompute>(static_cast<std::size_t>(blocks), what);
  };
  if (text == "none") return every(Recompute::nothing);
  if (text == "cheap") return every(Recompute::cheap);
  if (text == "all") return every(Recompute::all);
  const auto refuse = [&](const std::string& expected) {
    throw InputError(where + ": holds \"" + text + "\", expected " + expected);
  };
  std::vector<Recompute> chosen = every(Recompute::nothing);
  if (text.starts_with("every:")) {
    const std::int64_t step = count_of(std::string_view(text).substr(6));
    if (step < 1) refuse("every:K with K of 1 or more");
    for (std::int64_t i = 0; i < blocks; i += step) {
      chosen[static_cast<std::size_t>(i)] = Recompute::all;
    }
    return chosen;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    if (!add_block(entry, chosen) && !add_named(entry, chosen)) {
      refuse("all, none, cheap, every:K, budget:BYTES, blocks of 0 to " +
             std::to_string(blocks - 1) +
             " such as 0,1, or tensors such as n1:" + std::to_string(blocks) + ",product:1");
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return chosen;
}

template <class Exec>
std::vector<RecomputeCost> recompute_costs(const Exec& exec, nn::LlamaConfig config,
                                           const TrainOptions& options) {
  constexpr int rounds = 6;
  config.num_hidden_layers = 1;
  config.vocab_size = 1;
  BlockProbe<Exec> probe(exec, config, options);
  std::vector<RecomputeCost> costs;
  for (const Recompute part : nn::recomputable) {
    nn::Arena arena;
    nn::BlockActivations unused;
    nn::lay_out_block(arena, config, options.dtype, options.shape, part, unused);
    costs.push_back({part, arena.bytes(), probe.time(part)});
  }
  // A disturbance only adds to a measurement.
  for (int round = 1; round < rounds; ++round) {
    for (RecomputeCost& cost : costs) cost.time_s = std::min(cost.time_s, probe.time(cost.part));
  }
  return costs;
}

template <class Exec>
Checkpointing checkpointing_for_budget(const Exec& exec, const nn::LlamaConfig& config,
                                       TrainOptions options, std::vector<RecomputeCost> costs,
                                       std::size_t budget_bytes) {
  std::vector<Recompute>& chosen = options.recompute;
  chosen.assign(static_cast<std::size_t>(config.num_hidden_layers), Recompute::nothing);
  const auto fits = [&] { return training_memory(exec, config, options).total() <= budget_bytes; };
  std::vector<RecomputeCost> order = costs;
  for (RecomputeCost& cost : order) {
    if (cost.part == Recompute::h)
      cost.time_s -= time_of(costs, Recompute::n2);  // its kernel
                                                     // writes both
  }
  std::ranges::stable_sort(order, {}, [](const RecomputeCost& cost) {
    return cost.time_s / static_cast<double>(cost.bytes);
  });
  bool done = fits();
  for (auto cost = order.begin(); cost != order.end() && !done; ++cost) {
    for (auto block = chosen.rbegin(); block != chosen.rend() && !done; ++block) {
      *block = *block | cost->part;
      done = fits();
    }
  }
  if (!done) {
    std::ranges::fill(chosen, Recompute::all);
    throw InputError("the memory budget holds " + std::to_string(budget_bytes) +
                     " bytes, expected at least " +
                     std::to_string(training_memory(exec, config, options).total()) +
                     " with every block computed again");
  }
  for (auto cost = order.rbegin(); cost != order.rend(); ++cost) {
    for (Recompute& block : chosen) {
      const bool comes_anyway = cost->part == Recompute::n2 && nn::has(block, Recompute::h);
      if (!nn::has(block, cost->part) || comes_anyway) continue;
      block = nn::without(block, cost->part);
      if (fits()) continue;
      block = block | cost->part;
      break;
    }
  }
  return {text_of(chosen), chosen, std::move(costs)};
}

template <class Exec>
Checkpointing plan_checkpointing(const Exec& exec, const nn::LlamaConfig& config,
                                 const TrainOptions& options, const std::string& where,
                                 const std::string& text) {
  constexpr std::string_view budget = "budget:";
  if (!text.starts_with(budget)) {
    return {text, parse_checkpointing(where, text, config.num_hidden_layers), {}};
  }
  const std::size_t bytes = budget_of(where, text.substr(budget.size()));
  TrainOptions extreme = options;
  const auto needed = [&](const char* everything) {
    extreme.recompute = parse_checkpointing(where, everything, config.num_hidden_layers);
    return training_memory(exec, config, extreme).total();
  };
  // Measures nothing when there is no choice, or none that fits.
  std::vector<RecomputeCost> costs;
  if (needed("none") > bytes && needed("all") <= bytes) {
    costs = recompute_costs(exec, config, options);
  }
  return checkpointing_for_budget(exec, config, options, std::move(costs), bytes);
}

#define KATT_INSTANTIATE_CHECKPOINTING(Exec)                                                       \
  template std::vector<RecomputeCost> recompute_costs<Exec>(const Exec&, nn::LlamaConfig,          \
                                                            const TrainOptions&);                  \
  template Checkpointing checkpointing_for_budget<Exec>(                                           \
      const Exec&, const nn::LlamaConfig&, TrainOptions, std::vector<RecomputeCost>, std::size_t); \
  template Checkpointing plan_checkpointing<Exec>(const Exec&, const nn::LlamaConfig&,             \
                                                  const TrainOptions&, const std::string&,         \
                                                  const std::string&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_CHECKPOINTING)

}  // namespace katt::training
