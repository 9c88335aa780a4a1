#include "ranks/groups.hpp"

#include "core/error.hpp"

namespace katt::ranks {

std::string to_text(const Layout& layout) {
  std::string text;
  const auto add = [&](const char* name, int ranks) {
    if (ranks == 1) return;
    text += (text.empty() ? "" : " × ") + std::string(name) + " " + std::to_string(ranks);
  };
  add("tensor", layout.tensor);
  add("pipeline", layout.pipeline);
  if (layout.virtual_stages > 1) {
    text += " in " + std::to_string(layout.pipeline * layout.virtual_stages) + " parts";
  }
  add("context", layout.context);
  if (layout.context > 1 && layout.context_variant == ContextVariant::ulysses) text += " (Ulysses)";
  add("data", layout.data);
  if (layout.shares_rows()) text += ", sequence parallel";
  if (layout.zero) text += ", ZeRO-1";
  return text.empty() ? "one rank" : text;
}

Layout layout_of(int ranks, int tensor, int pipeline, int context, bool zero) {
  const std::int64_t model = std::int64_t{tensor} * pipeline * context;
  if (ranks % model != 0) {
    throw InputError(
        "--tensor " + std::to_string(tensor) + " --pipeline " + std::to_string(pipeline) +
        " --context " + std::to_string(context) + ": their product is " + std::to_string(model) +
        ", expected a divisor of the " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"));
  }
  return {.tensor = tensor,
          .pipeline = pipeline,
          .context = context,
          .data = static_cast<int>(ranks / model),
          .zero = zero};
}

Place::Place(const Layout& of, int rank) : layout(of) {
  tensor = rank % of.tensor;
  rank /= of.tensor;
  context = rank % of.context;
  rank /= of.context;
  data = rank % of.data;
  stage = rank / of.data;
}

Groups::Groups(const Communicator& ranks, const Layout& layout) : all(ranks) {
  if (ranks.size() != layout.ranks()) {
    throw InputError("the layout " + to_text(layout) + " has " + std::to_string(layout.ranks()) +
                     " ranks, expected the " + std::to_string(ranks.size()) + " that there are");
  }
  place = Place(layout, ranks.rank());
  if (ranks.size() == 1) return;
  // The ranks that differ only in the given coordinates, in their order.
  const auto group = [&](bool of_tensor, bool of_context, bool of_data, bool of_stage) {
    int color = 0;
    const auto fix = [&](bool varies, int extent, int at) {
      if (!varies) color = color * extent + at;
    };
    fix(of_tensor, layout.tensor, place.tensor);
    fix(of_context, layout.context, place.context);
    fix(of_data, layout.data, place.data);
    fix(of_stage, layout.pipeline, place.stage);
    return ranks.split(color, ranks.rank());
  };
  tensor = group(true, false, false, false);
  context = group(false, true, false, false);
  replicas = group(false, true, true, false);
  pipeline = group(false, false, false, true);
  model = group(true, false, false, true);
  if (layout.pipeline > 1) {
    pipeline_back = group(false, false, false, true);
    const bool is_end = place.is_first_stage() || place.is_last_stage();
    ends = pipeline.split(is_end ? 0 : 1 + place.stage, place.stage);
  }
}

}  // namespace katt::ranks
