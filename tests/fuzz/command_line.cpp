// Command lines of katt sweep, tune and train up to the work, and lists of tokens: a word a line, the
// first is the command.

#include "core/text.hpp"
#include "drivers/options/measure_options.hpp"
#include "drivers/options/model_options.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/training/train_options.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/registry.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

namespace {

katt::impl::Invocation invocation_of(const std::vector<std::string>& words) {
  return {.registry = fuzz::registry(), .arguments = words};
}

void measure(const std::vector<std::string>& words) {
  const katt::impl::Invocation invocation = invocation_of(words);
  katt::bench::SweepRequest request;
  katt::impl::CommandLine line("katt sweep", "");
  katt::impl::MeasureOptions options(line, invocation, request);
  if (!line.parse(invocation)) return;
  options.apply(request);
  static_cast<void>(options.device(request));
  fuzz::plan(request);
}

void train(const std::vector<std::string>& words) {
  katt::impl::TrainCommandLine line;
  if (!line.parse(invocation_of(words))) return;
  static_cast<void>(line.options());
  static_cast<void>(line.run_options());
  static_cast<void>(line.checkpointing());
  line.check_output();
  static_cast<void>(line.model_config());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  // Help is printed; where a file is named, there is none.
  fuzz::require(std::freopen("/dev/null", "w", stdout) != nullptr, "no /dev/null");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(fuzz::text_of(data, size));
  std::erase(text, '/');  // no path leads out of the folder that scripts/fuzz makes
  std::erase(text, '\0');
  std::vector<std::string> words = katt::bench::split(text, '\n');
  const std::string command = words.front();
  words.erase(words.begin());
  fuzz::is_taken(
      [&] {
        if (command == "train") return train(words);
        if (command != "tokens") return measure(words);
        for (const std::string& word : words) static_cast<void>(katt::impl::parse_tokens(word));
      },
      fuzz::From::command_line);
  return 0;
}
