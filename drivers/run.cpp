#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "io/hdf5/case_file.hpp"
#include "machine/machine.hpp"
#include "op/collective.hpp"
#include "plan/axes.hpp"
#include "plan/operator_axes.hpp"
#include "record/json.hpp"

namespace katt::impl {
namespace {

/// {"op": …, "backend": …, "threads": …, "dtype": …, "out": FILE, "outputs": {"dq": [2, 8, 64,
/// 64]}}
void print_json(const bench::Operator& op, const bench::RunOptions& options, Dtype dtype,
                const std::string& out, const io::TensorFile& result) {
  nlohmann::ordered_json outputs = nlohmann::ordered_json::object();
  for (const auto& [name, tensor] : result.tensors()) outputs[name] = tensor.shape;
  const nlohmann::ordered_json summary{{"op", op.name()},
                                       {"backend", name_of(options.backend)},
                                       {"threads", options.threads},
                                       {"dtype", name_of(dtype)},
                                       {"out", out},
                                       {"outputs", outputs}};
  std::printf("%s\n", bench::dumped(summary).c_str());
}

/// The variants of the operator among the arguments.
std::vector<std::string> variants_of(const Invocation& invocation, const CommandLine& line) {
  return bench::variant_names(
      invocation.registry.find(line.first_positional(invocation.arguments)));
}

/// Throws InputError, with the nearest variant, when no pass on the backend has it.
void check_variant(const bench::Operator& op, Backend backend, const std::string& variant) {
  std::vector<std::string> known{std::string(auto_variant)};
  for (const std::string& pass : op.passes()) {
    for (const bench::VariantInfo& info : op.variants(backend, pass)) {
      bench::add_once(known, info.name);
    }
  }
  if (std::ranges::find(known, variant) != known.end()) return;
  const std::string near = bench::suggestion(variant, known);
  throw InputError("--variant " + variant + ": unknown; " + (near.empty() ? "" : near + " ") +
                   "expected " + bench::join(known, ", "));
}

}  // namespace

int run_command(const Invocation& invocation) {
  CommandLine line("katt run", "Run one operator on tensors from a file");
  bool json = false, overwrite = false;
  line.positional("op", "operator", operator_values(invocation.registry));
  line.option("--in", "case file (HDF5): inputs as datasets, parameters as attributes",
              files({".h5"}));
  line.option("--out", "file to write the outputs to", files({".h5"}));
  line.flag("--overwrite", overwrite, "replace the file of --out");
  line.option("--variant", "variant to run (default: auto, the fastest that accepts the arguments)",
              {.words = [&] { return variants_of(invocation, line); }});
  line.option("--tile-q", "query extent of the tile (default: the variant's)");
  line.option("--tile-kv", "key extent of the tile");
  line.option("--backend", "openmp, serial or cuda", backend_values());
  line.option("--device", device_help);
  line.option("--threads", "host threads (default: every core)");
  line.option("--dtype", "f32, f16 or bf16: compute in it (default: the case's own)",
              dtype_values());
  line.option("--seed", "as everywhere; no operator draws random numbers");
  line.flag("--json", json, "print what was run and written as one line of JSON");
  line.example("katt run attention --in case.h5 --out out.h5",
               "the fastest variant; OUT.h5's attribute variant and --verbose say which");
  line.example(
      "katt run attention --in case.h5 --out out.h5 --variant flash --tile-q 64 --tile-kv 64",
      "one variant with one tile");
  line.example("katt info attention", "the tensors and attributes of a case file");
  if (!line.parse(invocation)) return 0;
  const auto& op = line.text("op");
  if (!op)
    throw InputError("katt run: the operator is missing: katt run OP --in CASE.h5 --out OUT.h5");

  const bench::Operator& chosen = invocation.registry.find(*op);
  const ranks::Communicator ranks = ranks::world();
  if (ranks.size() > 1 && !bench::is_collective(chosen)) {
    throw InputError("katt run " + *op + ": started on " + std::to_string(ranks.size()) +
                     " ranks, expected 1");
  }
  bench::RunOptions options;
  options.backend = backend_option(line.text("--backend"));
  const std::optional<int> chosen_device = device_option(line.text("--device"), options.backend);
  const int most = threads_option(line.text("--threads"));
  options.threads = bench::resolved_threads(options.backend, most);
  const auto& variant = line.text("--variant");
  if (variant) options.config.variant = *variant;
  const auto extent = [&](const char* name) {  // 0 where it is left open
    const auto& text = line.text(name);
    return text ? static_cast<int>(bench::parse_count(name, *text, 1, bench::max_tile)) : 0;
  };
  if (line.text("--tile-q") || line.text("--tile-kv")) {
    options.config.setting = {extent("--tile-q"), extent("--tile-kv")};
  }
  static_cast<void>(seed_option(line.text("--seed"), 0));
  constexpr const char* usage = "katt run OP --in CASE.h5 --out OUT.h5";
  const std::string& target = line.required("--out", usage);
  const std::string& in = line.required("--in", usage);
  const io::CaseFile input(in, dtype_option(line.text("--dtype")));
  const io::Outputs outputs = claim_outputs({{"--out", target}}, {{"--in", in}}, overwrite);

  const Runtime runtime(most, chosen_device);
  if (variant) check_variant(chosen, options.backend, *variant);
  io::TensorFile result;
  chosen.run_file(input, options, result);
  if (ranks.rank() > 0) return 0;  // rank 0 has the whole result
  input.refuse_misspelt();
  tell_threads(most);
  result.write(target);
  if (is_verbose()) {
    tell(*op + ": " + io::CaseFile(target).text("variant", "") + ", " +
         std::string(name_of(input.dtype())) + " on " + bench::device_name(options.backend) + ", " +
         bench::counted_text(static_cast<std::size_t>(options.threads), "thread") + "; wrote " +
         target);
  }
  if (json) print_json(chosen, options, input.dtype(), target, result);
  return 0;
}

}  // namespace katt::impl
