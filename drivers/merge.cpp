#include "record/merge.hpp"

#include <cstdio>

#include "drivers/options/command_line.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/summaries.hpp"
#include "io/printable.hpp"
#include "record/results.hpp"

namespace katt::impl {

int merge_command(const Invocation& invocation) {
  CommandLine line("katt merge",
                   "Put result files together, such as the parts of a sweep: katt merge part_*.h5 "
                   "-o OUT.h5");
  std::vector<std::string> files;
  bool overwrite = false;
  bool json = false;
  line.positionals("files", files, "result files; their runs are kept apart");
  line.option("-o,--output", "result file (HDF5) to write");
  line.flag("--overwrite", overwrite, "replace the result file");
  line.flag("--json", json, "print a summary as JSON");
  line.footer(
      "Missing and unfinished parts, rows that are there twice, and different machines and commits "
      "are told.");
  if (!line.parse(invocation.arguments)) return 0;
  if (files.empty()) throw InputError("katt merge: expected result files, e.g. part_*.h5");
  const std::string& output =
      line.required("-o", "expected the result file to write, e.g. -o results/NAME.h5");
  const std::vector<std::filesystem::path> paths(files.begin(), files.end());
  std::vector<io::NamedPath> parts;
  for (const std::filesystem::path& path : paths) parts.push_back({"the part", path});
  const io::Outputs outputs = claim_outputs({{"-o", output}}, parts, overwrite);
  const bench::Merged merged = bench::merge_results(invocation.registry, paths);
  io::write_result(output, bench::result_columns(invocation.registry), merged.contents);
  for (const std::string& note : bench::notes(merged)) {
    std::fprintf(stderr, "%s\n", io::impl::escaped(note).c_str());
  }
  std::fprintf(stderr, "%zu rows of %zu runs in %zu files; %s\n", merged.contents.rows.size(),
               merged.contents.runs.size(), merged.files, io::impl::escaped(output).c_str());
  if (json) std::printf("%s\n", bench::merged_json(merged, output).c_str());
  return 0;
}

}  // namespace katt::impl
