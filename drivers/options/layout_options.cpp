#include "drivers/options/layout_options.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "plan/axes.hpp"

namespace katt::impl {

namespace {

int count_of(const char* name, const std::optional<std::string>& text) {
  return text ? static_cast<int>(bench::parse_count(name, *text, 1, most_ranks)) : 1;
}

}  // namespace

void LayoutOptions::add_model_to(CommandLine& line) {
  line.option("--tensor", tensor, "ranks that share every matrix (default: 1)");
  line.option("--pipeline", pipeline, "stages of blocks, a rank each (default: 1)");
}

void LayoutOptions::add_inference_to(CommandLine& line) {
  add_model_to(line);
  line.option("--context", context,
              "so many times more replicas of the model: inference cuts no sequence (default: 1)");
  line.option("--zero", zero, "of training; inference has no optimizer");
  line.option("--micro-batches", micro_batches, "of training; inference has --chunk");
}

void LayoutOptions::add_to(CommandLine& line) {
  add_model_to(line);
  line.option("--context", context, "ranks that share every sequence (default: 1)");
  line.option("--zero", zero, "1: data parallel ranks share the optimizer's state (default: 0)");
  line.option("--sequence-parallel", sequence_parallel,
              "1: tensor parallel ranks share the rows of norms and of the residual stream "
              "(default: 0)");
  line.option("--context-variant", context_variant,
              "ring: keys travel; ulysses: ranks exchange tokens for heads (default: ring)");
  line.option("--virtual-stages", virtual_stages,
              "parts of the blocks that a stage has, in turns with the other stages (default: 1)");
}

void LayoutOptions::resolve() { resolve_forecast(ranks::world().size()); }

void LayoutOptions::resolve_forecast(int ranks) {
  const auto is_set = [](const char* name, const std::optional<std::string>& text) {
    return text && bench::parse_count(name, *text, 0, 1) == 1;
  };
  if (context_variant && *context_variant != "ring" && *context_variant != "ulysses") {
    throw InputError("--context-variant " + *context_variant + ": expected ring or ulysses");
  }
  (void)count_of("--micro-batches", micro_batches);
  const int t = count_of("--tensor", tensor);
  const int s = count_of("--pipeline", pipeline);
  const int c = count_of("--context", context);
  if (ranks == 0) {
    const std::int64_t named = std::int64_t{t} * s * c;
    ranks = ranks::world().size() > 1 ? ranks::world().size()
                                      : static_cast<int>(std::min(named, most_ranks));
  }
  layout = ranks::layout_of(ranks, t, s, c, is_set("--zero", zero));
  layout.sequence_parallel = is_set("--sequence-parallel", sequence_parallel);
  if (context_variant == "ulysses") layout.context_variant = ranks::ContextVariant::ulysses;
  layout.virtual_stages = count_of("--virtual-stages", virtual_stages);
}

std::optional<std::string>* LayoutOptions::text(const std::string& name) {
  if (name == "--tensor") return &tensor;
  if (name == "--pipeline") return &pipeline;
  if (name == "--context") return &context;
  if (name == "--zero") return &zero;
  if (name == "--sequence-parallel") return &sequence_parallel;
  if (name == "--context-variant") return &context_variant;
  if (name == "--virtual-stages") return &virtual_stages;
  return nullptr;
}

ranks::Groups LayoutOptions::groups() const { return {ranks::world(), layout}; }

Replicas LayoutOptions::replicas() const {
  const ranks::Groups all = groups();
  return {{all.model, {.tensor = layout.tensor, .pipeline = layout.pipeline}}, all.replicas};
}

}  // namespace katt::impl
