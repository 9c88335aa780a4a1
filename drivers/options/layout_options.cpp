#include "drivers/options/layout_options.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "plan/axes.hpp"
#include "sweep/sweep_ranks.hpp"

namespace katt::impl {

void LayoutOptions::add_model_to(CommandLine& line) {
  line.option("--tensor", "ranks that share every matrix (default: 1)");
  line.option("--pipeline", "stages of blocks, a rank each (default: 1)");
}

void LayoutOptions::add_inference_to(CommandLine& line) {
  add_model_to(line);
  line.option("--context",
              "so many times more replicas of the model: inference cuts no sequence (default: 1)");
  line.option("--zero", "of training; inference has no optimizer");
  line.option("--micro-batches", "of training; inference has --chunk");
}

void LayoutOptions::add_to(CommandLine& line) {
  add_model_to(line);
  line.option("--context", "ranks that share every sequence (default: 1)");
  line.option("--zero", "1: data parallel ranks share the optimizer's state (default: 0)",
              one_of({"0", "1"}));
  line.option("--sequence-parallel",
              "1: tensor parallel ranks share the rows of norms and of the residual stream "
              "(default: 0)",
              one_of({"0", "1"}));
  line.option("--context-variant",
              "ring: keys travel; ulysses: ranks exchange tokens for heads (default: ring)",
              one_of({"ring", "ulysses"}));
  line.option("--virtual-stages",
              "parts of the blocks that a stage has, in turns with the other stages (default: 1)");
}

void LayoutOptions::resolve_forecast(const CommandLine& line, int ranks) {
  const auto count = [&](const char* name) {
    const auto& text = line.text(name);
    return text ? static_cast<int>(bench::parse_count(name, *text, 1, most_ranks)) : 1;
  };
  const auto is_set = [&](const char* name) {
    const auto& text = line.text(name);
    return text && bench::parse_count(name, *text, 0, 1) == 1;
  };
  const std::string variant = line.text("--context-variant").value_or("ring");
  if (variant != "ring" && variant != "ulysses") {
    throw InputError("--context-variant " + variant + ": expected ring or ulysses");
  }
  (void)line.count("--micro-batches", 1, 1);
  const int t = count("--tensor");
  const int s = count("--pipeline");
  const int c = count("--context");
  if (ranks == 0) {
    const std::int64_t named = std::int64_t{t} * s * c;
    ranks = ranks::world().size() > 1 ? ranks::world().size()
                                      : static_cast<int>(std::min(named, most_ranks));
  }
  layout = ranks::layout_of(ranks, t, s, c, is_set("--zero"));
  layout.sequence_parallel = is_set("--sequence-parallel");
  if (variant == "ulysses") layout.context_variant = ranks::ContextVariant::ulysses;
  layout.virtual_stages = count("--virtual-stages");
}

void LayoutOptions::resolve(const CommandLine& line) {
  bench::check_alike(ranks::world(), "has other options",
                     line.given({"--threads", "--device", "--model", "--log", "--config", "--json",
                                 "--verbose", "--quiet"}));
  resolve_forecast(line, ranks::world().size());
}

ranks::Groups LayoutOptions::groups() const { return {ranks::world(), layout}; }

Replicas LayoutOptions::replicas() const {
  const ranks::Groups all = groups();
  return {{all.model, {.tensor = layout.tensor, .pipeline = layout.pipeline}}, all.replicas};
}

void check_blocks(const std::string& blocks, int ranks) {
  if (ranks > 1 && blocks.starts_with("budget:")) {
    throw InputError("--checkpoint-blocks " + blocks +
                     ": of several ranks each would choose for itself, expected all, none, cheap, "
                     "every:K, blocks or tensors");
  }
}

}  // namespace katt::impl
