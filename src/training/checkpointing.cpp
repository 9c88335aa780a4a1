#include "training/checkpointing.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/backend.hpp"
#include "core/error.hpp"

namespace katt::training {

namespace {

using nn::Recompute;

/// The number that the text is, or −1.
std::int64_t count_of(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

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
    const std::int64_t block = count_of(rest.substr(0, comma));
    if (block < 0 || block >= blocks) {
      refuse("all, none, cheap, every:K, budget:BYTES, or blocks of 0 to " +
             std::to_string(blocks - 1) + " such as 0,1");
    }
    chosen[static_cast<std::size_t>(block)] = Recompute::all;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return chosen;
}

template <class Exec>
std::vector<Recompute> checkpointing_for_budget(const Exec& exec, const nn::LlamaConfig& config,
                                                TrainOptions options, std::size_t budget_bytes) {
  options.recompute.assign(static_cast<std::size_t>(config.num_hidden_layers), Recompute::nothing);
  const auto needed = [&] { return training_memory(exec, config, options).total(); };
  if (needed() <= budget_bytes) return options.recompute;
  for (const Recompute what : {Recompute::cheap, Recompute::all}) {
    for (Recompute& block : options.recompute) {
      block = what;
      if (needed() <= budget_bytes) return options.recompute;
    }
  }
  throw InputError("the memory budget holds " + std::to_string(budget_bytes) +
                   " bytes, expected at least " + std::to_string(needed()) +
                   " with every block computed again");
}

#define KATT_INSTANTIATE_BUDGET(Exec)                             \
  template std::vector<Recompute> checkpointing_for_budget<Exec>( \
      const Exec&, const nn::LlamaConfig&, TrainOptions, std::size_t);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_BUDGET)

}  // namespace katt::training
