#include "bench/axes.hpp"
#include "bench/machine.hpp"
#include "bench/text.hpp"
#include "drivers/command_line.hpp"
#include "drivers/commands.hpp"
#include "drivers/runtime.hpp"
#include "io/case_file.hpp"

namespace katt::impl {
namespace {

int extent(const char* name, const std::optional<std::string>& text) {
  return text ? static_cast<int>(bench::parse_count(name, *text, 1, bench::max_tile)) : 0;
}

const std::string& required(const char* name, const std::optional<std::string>& value) {
  if (!value || value->empty()) {
    throw InputError(std::string(name) + " is missing: katt run OP --in CASE.h5 --out OUT.h5");
  }
  return *value;
}

}  // namespace

int run_command(const Invocation& invocation) {
  CommandLine line("katt run", "Run one operator on tensors from a file");
  std::optional<std::string> op, in, out, variant, tile_q, tile_kv, backend, threads;
  line.positional("op", op, "operator");
  line.option("--in", in, "case file (HDF5): inputs as datasets, parameters as attributes");
  line.option("--out", out, "file to write the outputs to");
  line.option("--variant", variant, "variant to run (default: the operator's)");
  line.option("--tile-q", tile_q, "query extent of the tile (default: the variant's)");
  line.option("--tile-kv", tile_kv, "key extent of the tile");
  line.option("--backend", backend, "openmp, serial or cuda");
  line.option("--threads", threads, "host threads (default: every core)");
  if (!line.parse(invocation.arguments)) return 0;
  if (!op)
    throw InputError("katt run: the operator is missing: katt run OP --in CASE.h5 --out OUT.h5");

  const bench::Operator& chosen = invocation.registry.find(*op);
  bench::RunOptions options;
  options.backend = backend_option(backend);
  const int most = threads_option(threads);
  options.threads = bench::resolved_threads(options.backend, most);
  options.config.variant = variant.value_or("");
  options.config.tile = {.q = extent("--tile-q", tile_q), .kv = extent("--tile-kv", tile_kv)};
  const std::string& target = required("--out", out);
  const io::CaseFile input(required("--in", in));

  const Runtime runtime(most);
  io::TensorFile result;
  chosen.run_file(input, options, result);
  result.write(target);
  return 0;
}

}  // namespace katt::impl
