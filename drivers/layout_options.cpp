#include "drivers/layout_options.hpp"

#include <algorithm>

#include "bench/axes.hpp"
#include "core/error.hpp"

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

void LayoutOptions::add_to(CommandLine& line) {
  add_model_to(line);
  line.option("--context", context, "ranks that share every sequence (default: 1)");
  line.option("--zero", zero, "1: data parallel ranks share the optimizer's state (default: 0)");
}

void LayoutOptions::resolve() { resolve_forecast(dist::world().size()); }

void LayoutOptions::resolve_forecast(int ranks) {
  if (zero && *zero != "0" && *zero != "1") {
    throw InputError("--zero " + *zero + ": expected 0 or 1");
  }
  const int t = count_of("--tensor", tensor);
  const int s = count_of("--pipeline", pipeline);
  const int c = count_of("--context", context);
  if (ranks == 0) {
    const std::int64_t named = std::int64_t{t} * s * c;
    ranks = dist::world().size() > 1 ? dist::world().size()
                                     : static_cast<int>(std::min(named, most_ranks));
  }
  layout = dist::layout_of(ranks, t, s, c, zero == "1");
}

void LayoutOptions::expect_model_alone(const std::string& command) const {
  if (layout.replicas() == 1) return;
  throw InputError("--tensor " + std::to_string(layout.tensor) + " --pipeline " +
                   std::to_string(layout.pipeline) + ": " + command + " has " +
                   std::to_string(layout.ranks()) + " ranks, expected --tensor " +
                   std::to_string(layout.ranks() / layout.pipeline) +
                   ", or another product of both that is the number of ranks");
}

std::optional<std::string>* LayoutOptions::text(const std::string& name) {
  if (name == "--tensor") return &tensor;
  if (name == "--pipeline") return &pipeline;
  if (name == "--context") return &context;
  if (name == "--zero") return &zero;
  return nullptr;
}

dist::Groups LayoutOptions::groups() const { return {dist::world(), layout}; }

}  // namespace katt::impl
