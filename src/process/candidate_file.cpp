#include "process/candidate_file.hpp"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "process/sha256.hpp"

namespace katt::bench {
namespace {

namespace fs = std::filesystem;

/// The header of a program of this machine, whatever its interface.
Elf64_Ehdr own_header() {
  Elf64_Ehdr header{};
  std::ifstream("/proc/self/exe", std::ios::binary)
      .read(reinterpret_cast<char*>(&header), sizeof header);
  return header;
}

/// Why a file is no shared library of this machine; empty when it is one.
std::string problem_of_library(const fs::path& path) {
  Elf64_Ehdr header{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "is no shared library, expected what `cc -shared -fPIC` makes, or a file of Python "
           "whose name ends in .py";
  }
  const Elf64_Ehdr own = own_header();
  if (header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS] ||
      header.e_ident[EI_DATA] != own.e_ident[EI_DATA] || header.e_machine != own.e_machine) {
    return "is a library of another machine (ELF machine " + std::to_string(header.e_machine) +
           "), expected one of this (" + std::to_string(own.e_machine) + ")";
  }
  if (header.e_type != ET_DYN) return "is no shared library, expected what `cc -shared` makes";
  return {};
}

/// The loader's message without the path that it begins with.
std::string without_path(std::string text, const fs::path& path) {
  const std::string begin = path.string() + ": ";
  return text.starts_with(begin) ? text.substr(begin.size()) : text;
}

}  // namespace

CandidateFile inspect_candidate(const std::string& where, const fs::path& path,
                                const CandidateOptions& options, const StopFlag& stop) {
  const std::string begin = where + " " + path.string() + ": ";
  std::error_code error;
  if (!fs::exists(path, error)) throw InputError(begin + "no such file");
  if (!fs::is_regular_file(path, error)) throw InputError(begin + "is no file");
  CandidateFile file{.path = fs::absolute(path), .sha256 = {}, .about = {}};
  if (!file.is_python()) {
    if (const std::string problem = problem_of_library(path); !problem.empty()) {
      throw InputError(begin + problem);
    }
  }
  const PeerLaunch launch = launch_of(file, options, 1, 0);
  for (const fs::path& program : {launch.program, options.python_program}) {
    if (!program.empty() && !fs::exists(program, error)) {
      throw InputError(begin + "needs the program " + program.string() + ", which is not there");
    }
  }
  try {
    file.sha256 = sha256_of_file(path);
    PeerProcess process(launch, {}, stop);
    const std::string line = process.ask(R"({"do": "about"})");
    const auto reply = nlohmann::json::parse(line, nullptr, false);
    if (!reply.is_object()) throw std::runtime_error("it answered nonsense");
    if (const auto failed = reply.find("failed"); failed != reply.end()) {
      throw InputError(begin + without_path(failed->get<std::string>(), file.path));
    }
    file.about = reply.at("about");
    (void)reply.at("passes").get<std::vector<std::string>>();
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& problem) {
    const std::string text = problem.what();
    throw InputError(begin + "cannot be loaded: " + text.substr(0, text.find('\n')));
  }
  return file;
}

PeerLaunch launch_of(const CandidateFile& file, const CandidateOptions& options, int threads,
                     std::size_t case_bytes) {
  PeerLaunch launch{.program = program_beside("katt-candidate"),
                    .arguments = {"--threads", std::to_string(threads)},
                    .timeout_s = options.timeout_s,
                    .noun = "the candidate"};
  if (file.is_python()) {
    launch.arguments.insert(
        launch.arguments.end(),
        {"--exec", options.python_program.empty() ? program_beside("katt-candidate-python").string()
                                                  : options.python_program.string()});
  }
  launch.arguments.push_back(file.path.string());
  if (!options.untrusted) return launch;
  // Room for a copy of every tensor and for what libraries take for themselves and a thread.
  constexpr std::size_t of_libraries = std::size_t{2} << 30U;
  constexpr std::size_t of_thread = std::size_t{64} << 20U;
  const std::size_t bytes =
      2 * case_bytes + of_libraries + static_cast<std::size_t>(threads) * of_thread;
  launch.arguments.insert(launch.arguments.begin(), {"--untrusted", std::to_string(bytes)});
  launch.clean_environment = true;
  return launch;
}

PeerLaunch caged(PeerLaunch launch, std::size_t data_bytes) {
  launch.arguments.insert(launch.arguments.begin(), {"--untrusted", std::to_string(data_bytes),
                                                     "--exec", launch.program.string()});
  launch.program = program_beside("katt-candidate");
  launch.clean_environment = true;
  return launch;
}

fs::path program_beside(const std::string& name) {
  std::error_code error;
  fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  const char* const path = std::getenv("PATH");
  if (fs::exists(beside, error) || path == nullptr) return beside;
  for (const std::string& folder : split(path, ':')) {  // of a program of the user's own
    const fs::path found = fs::path(folder) / name;
    if (fs::path(folder).is_absolute() && fs::exists(found, error)) return found;
  }
  return beside;
}

}  // namespace katt::bench
