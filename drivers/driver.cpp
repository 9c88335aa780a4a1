#include "drivers/driver.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/build_info.hpp"
#include "core/text.hpp"
#include "drivers/runtime/blas_kernels.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/surroundings.hpp"
#include "io/atomic_file.hpp"
#include "io/printable.hpp"
#include "process/watch.hpp"
#include "ranks/communicator.hpp"
#include "ranks/environment.hpp"
#include "record/provenance.hpp"

namespace katt {
namespace {

struct Command {
  std::string_view group;  ///< heading in the help
  std::string_view name;
  int (*run)(const impl::Invocation&);
  std::string_view help;
  bool takes_ranks = false;  ///< true: mpirun may start it on several ranks
};

/// The commands, those of a group side by side.
std::vector<Command> commands() {
  std::vector<Command> all {
    {"Measure", "sweep", impl::sweep_command,
     "measure an operator over many points into a result file", true},
        {"Measure", "tune", impl::tune_command,
         "find the fastest tiles of this machine, for --tile auto"},
        {"Measure", "merge", impl::merge_command,
         "put result files together, such as the parts of a sweep"},
        {"Measure", "referee", impl::referee_command,
         "judge a kernel of others: a task in JSON, a verdict in JSON"},
        {"Compute", "run", impl::run_command, "run one operator on the tensors of a file", true},
#if defined(KATT_HAS_MODEL)  // all operators of a LLaMA are built
        {"Models", "generate", impl::generate_command, "continue a prompt with a LLaMA", true},
        {"Models", "logits", impl::logits_command, "logits of a LLaMA for a prompt", true},
        {"Models", "train", impl::train_command, "train a LLaMA", true},
        {"Models", "memory", impl::memory_command, "forecast the memory of a LLaMA", true},
#endif
        {"Machine", "info", impl::info_command,
         "build, machine, backends, operators with variants and tiles", true},
        {"Shell", "completion", impl::completion_command,
         "print a script that completes commands and options: bash or zsh"},
  };
  return all;
}

void print_help() {
  std::printf("katt: a testbed of transformer kernels\n\nUsage: katt COMMAND [options]\n");
  std::string_view group;
  for (const Command& command : commands()) {
    if (command.group != group) std::printf("\n%s:\n", std::string(command.group).c_str());
    group = command.group;
    std::printf("  %-12s%s\n", std::string(command.name).c_str(),
                std::string(command.help).c_str());
  }
  std::printf(
      "\nExamples:\n"
      "  katt sweep attention --seq 512:8192:x2 --dtype f32,bf16 --causal 0,1 -o mine.h5\n"
      "  katt-report mine.h5                  the answer, and a page with figures\n"
      "  katt info attention                  its variants, tiles and axes\n"
      "  katt generate --model DIR --tokens 1,2,3 --max-new-tokens 64\n"
      "\nkatt COMMAND --help tells more, with examples; katt --version prints the version.\n"
      "Results go to standard output, all else to standard error: every command has --verbose and "
      "--quiet.\n");
}

/// `katt complete WORD…`: prints the candidates for the last word, a line each. The process does
/// nothing else: a shell waits.
int complete(std::span<const std::string> words, const bench::Registry& registry) {
  if (words.empty()) return 0;
  if (words.size() == 1) {
    std::vector<std::string> names;
    for (const Command& command : commands()) names.emplace_back(command.name);
    names.insert(names.end(), {"--help", "--version"});
    for (const std::string& name : names) {
      if (name.starts_with(words.front())) std::printf("%s\n", name.c_str());
    }
    return 0;
  }
  const std::vector<Command> all = commands();
  const auto command = std::ranges::find(all, words.front(), &Command::name);
  if (command == all.end()) return 0;
  try {
    return command->run({.registry = registry, .arguments = words.subspan(1), .completes = true});
  } catch (const InputError&) {
    return 0;  // what is typed so far makes no sense
  }
}

/// A suggestion for an unknown command: "did you mean sweep? ".
std::string meant(const std::string& word, const std::vector<std::string>& commands,
                  const bench::Registry& registry) {
  const auto instead = [](const std::string& text) { return "did you mean katt " + text + "? "; };
  if (word.ends_with(".toml")) return instead("sweep " + word);
  if (word == "report" || word == "plot") return "did you mean katt-report? ";
  if (word == "version") return instead("--version");
  if (const auto near = bench::nearest(word, commands); !near.empty()) return instead(near.front());
  std::vector<std::string> operators;
  for (const bench::Operator* op : registry.all()) operators.push_back(op->name());
  const auto near = bench::nearest(word, operators);
  return near.empty() ? "" : instead("sweep " + near.front());
}

int dispatch(int argc, char** argv, const bench::Registry& registry) {
  constexpr std::string_view watched = "--watched=";  // the last argument of a child of a sweep
  if (argc > 2 && std::string_view(argv[1]) == "sweep" &&
      std::string_view(argv[argc - 1]).starts_with(watched)) {
    bench::watch::begin(std::atoi(argv[--argc] + watched.size()));
  }
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  if (arguments.empty())
    throw InputError("a command is missing; expected " + bench::join(names, ", "));
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_help();
    return 0;
  }
  if (name == "--version") {
    std::printf("katt %s (%s%s)\n", build_info().version, build_info().commit,
                build_info().dirty ? ", modified" : "");
    return 0;
  }
  for (const Command& command : commands()) {
    if (command.name == name) {
      if (const int ranks = ranks::world().size(); ranks > 1 && !command.takes_ranks) {
        throw InputError("katt " + name + ": started on " + std::to_string(ranks) +
                         " ranks, expected 1");
      }
      return command.run({.registry = registry,
                          .arguments = std::span(arguments).subspan(1),
                          .command = bench::command_text(argc, argv)});
    }
  }
  throw InputError(name + ": unknown command; " + meant(name, names, registry) + "expected " +
                   bench::join(names, ", "));
}

/// A message as one line without control characters.
std::string one_line(std::string message) {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return io::impl::escaped(message);
}

/// Throws std::runtime_error when the output did not arrive: a full disk, a closed pipe.
void finish_stdout() {
  const bool failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed) return;
  // The reason of an earlier failed write is lost: another write finds it. The output is cut off
  // anyway.
  errno = 0;
  std::clearerr(stdout);
  (void)(std::putchar('\n') != EOF && std::fflush(stdout) == 0);
  throw std::runtime_error("standard output: cannot be written: " +
                           std::generic_category().message(errno != 0 ? errno : EIO));
}

}  // namespace

int driver_main(int argc, char** argv) {
  bench::Registry registry;
  bench::register_builtin_ops(registry);
  return driver_main(argc, argv, registry);
}

int driver_main(int argc, char** argv, const bench::Registry& registry) {
  std::optional<ranks::Environment> ranks;
  int status = 1;
  std::string message;
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error of a write
  io::remove_scratch_on_signals();
  try {
    if (argc > 1 && std::string_view(argv[1]) == "complete") {
      return complete(std::vector<std::string>(argv + 2, argv + argc), registry);
    }
    impl::check_surroundings();
    impl::insist_on_blas_kernels(argv);
    ranks.emplace();
    // One rank prints. Another rank prints errors only, on stderr.
    if (ranks::world().rank() > 0 && std::freopen("/dev/null", "w", stdout) == nullptr) return 1;
    const int done = dispatch(argc, argv, registry);
    finish_stdout();
    return done;
  } catch (const InputError& error) {
    message = error.what();
    status = 2;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& error) {
    message = error.what();
  }
  message = one_line(message);
  if (!ranks || ranks->agree_to_fail(message, status)) {
    std::fprintf(stderr, "katt: %s\n", message.c_str());
  }
  return status;
}

}  // namespace katt
