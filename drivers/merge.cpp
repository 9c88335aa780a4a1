#include "record/merge.hpp"

#include <cstdio>

#include "drivers/options/command_line.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/summaries.hpp"
#include "record/results.hpp"

namespace katt::impl {

int merge_command(const Invocation& invocation) {
  CommandLine line("katt merge",
                   "Put result files together, such as the parts of a sweep: katt merge part_*.h5 "
                   "-o OUT.h5");
  std::vector<std::string> parts;
  bool overwrite = false;
  bool json = false;
  line.positionals("files", parts, "result files; their runs are kept apart", files({".h5"}));
  line.option("-o,--output", "result file (HDF5) to write", files({".h5"}));
  line.flag("--overwrite", overwrite, "replace the result file");
  line.flag("--json", json, "print a summary as JSON");
  line.footer(
      "Missing and unfinished parts, rows that are there twice, and different machines and commits "
      "are told.");
  line.example("katt merge part_*.h5 -o mine.h5", "the parts of katt sweep --shard I/N");
  line.example("katt merge monday.h5 friday.h5 -o both.h5", "two runs, which stay apart");
  if (!line.parse(invocation)) return 0;
  if (parts.empty()) throw InputError("katt merge: expected result files, e.g. part_*.h5");
  const std::string& output =
      line.required("-o", "expected the result file to write, e.g. -o results/NAME.h5");
  const std::vector<std::filesystem::path> paths(parts.begin(), parts.end());
  std::vector<io::NamedPath> inputs;
  for (const std::filesystem::path& path : paths) inputs.push_back({"the part", path});
  const io::Outputs outputs = claim_outputs({{"-o", output}}, inputs, overwrite);
  const bench::Merged merged = bench::merge_results(invocation.registry, paths);
  io::write_result(output, bench::result_columns(invocation.registry), merged.contents);
  for (const std::string& note : bench::notes(merged)) tell(note);
  tell(std::to_string(merged.contents.rows.size()) + " rows of " +
       std::to_string(merged.contents.runs.size()) + " runs in " + std::to_string(merged.files) +
       " files; " + output);
  if (json) std::printf("%s\n", bench::merged_json(merged, output).c_str());
  return 0;
}

}  // namespace katt::impl
