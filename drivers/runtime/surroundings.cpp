#include "drivers/runtime/surroundings.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"
#include "machine/machine.hpp"

namespace katt::impl {
namespace {

constexpr long most_threads = bench::thread_limit;

/// This code runs before any library is initialised, so it uses no sanitizer and no C++ object.
#define KATT_EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

/// The value of a variable in an environment, from which one without a value is removed.
KATT_EARLY const char* value_of(char** environment, const char* name) {
  const std::size_t length = std::strlen(name);
  for (char** one = environment; *one != nullptr; ++one) {
    if (std::strncmp(*one, name, length) != 0 || (*one)[length] != '=') continue;
    if ((*one)[length + 1] != '\0') return *one + length + 1;
    for (; *one != nullptr; ++one) *one = one[1];
    break;
  }
  return nullptr;
}

/// The first number of "4" or "4,2"; 0 for a text that OpenMP refuses, or for more threads than a
/// sweep may have.
KATT_EARLY long thread_count(const char* text) {
  long first = 0;
  for (const char* at = text;; ++at) {
    char* end = nullptr;
    const long count = std::strtol(at, &end, 10);
    while (*end == ' ') ++end;
    if (end == at || count < 1 || count > most_threads || (*end != ',' && *end != '\0')) return 0;
    if (first == 0) first = count;
    if (*end == '\0') return first;
    at = end;
  }
}

/// Prints one line on stderr and ends the process.
[[noreturn]] KATT_EARLY void refuse(const char* text, std::size_t length) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, length);
  _exit(2);
}

/// Megabytes of address space of the process.
KATT_EARLY long mapped_mib() {
  char text[64] = {};
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  return length > 0 ? std::strtol(text, nullptr, 10) * (sysconf(_SC_PAGESIZE) / 1024) / 1024 : 0;
}

/// libgomp puts a record for each of OMP_NUM_THREADS threads on the stack, and OpenBLAS retries for
/// ever when it does not get its 128 MiB for each thread.
KATT_EARLY void check_before_libraries(int /*argc*/, char** /*argv*/, char** environment) {
  char line[256];
  const char* text = value_of(environment, "OMP_NUM_THREADS");  // LLVM's OpenMP aborts on ""
  const long asked = text == nullptr ? most_threads : thread_count(text);
  if (asked == 0) {
    char shown[41] = {};  // without control characters
    for (std::size_t i = 0; i + 1 < sizeof shown && text[i] != '\0'; ++i) {
      shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    }
    const int length = std::snprintf(line, sizeof line,
                                     "katt: OMP_NUM_THREADS=%s: expected an integer from 1 to %ld; "
                                     "--threads says how many threads work\n",
                                     shown, most_threads);
    refuse(line, static_cast<std::size_t>(length));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  long threads = sysconf(_SC_NPROCESSORS_CONF);
  if (asked < threads) threads = asked;
  constexpr long mib_of_thread = 128, spare_mib = 32;
  const long needed = mapped_mib() + threads * mib_of_thread + spare_mib;
  const long allowed = static_cast<long>(limit.rlim_cur >> 20U);
  if (allowed >= needed) return;
  const int length = std::snprintf(
      line, sizeof line,
      "katt: the address space is limited to %ld MiB (ulimit -v), expected at least %ld\n", allowed,
      needed);
  refuse(line, static_cast<std::size_t>(length));
}

using EarlyFunction = void (*)(int, char**, char**);
/// Functions of the program that the loader calls before those of libraries.
__attribute__((section(".preinit_array"), used)) EarlyFunction early = check_before_libraries;

std::string lowered(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Kokkos' words for yes and no.
bool is_yes(const std::string& text) {
  const std::string word = lowered(text);
  return word == "yes" || word == "true" || word == "1";
}
bool is_no(const std::string& text) {
  const std::string word = lowered(text);
  return word == "no" || word == "false" || word == "0";
}

[[noreturn]] void refuse(const std::string& name, const std::string& text,
                         const std::string& expected) {
  throw InputError(name + "=" + io::impl::printable(text) + ": expected " + expected);
}

}  // namespace

void check_surroundings() {
  for (const auto& [name, least] : {std::pair("KOKKOS_NUM_THREADS", 1), {"KOKKOS_DEVICE_ID", 0}}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const bench::Parsed parsed = bench::parse_integer(text);
    if (!parsed.problem.empty() || parsed.integer < least || parsed.integer > most_threads) {
      refuse(name, text,
             "an integer from " + std::to_string(least) + " to " + std::to_string(most_threads));
    }
  }
  for (const char* name :
       {"KOKKOS_DISABLE_WARNINGS", "KOKKOS_PRINT_CONFIGURATION", "KOKKOS_TUNE_INTERNALS"}) {
    const char* text = std::getenv(name);
    if (text != nullptr && !is_yes(text) && !is_no(text)) refuse(name, text, "true or false");
  }
  const char* by = std::getenv("KOKKOS_MAP_DEVICE_ID_BY");
  if (by != nullptr && std::strcmp(by, "random") != 0 && std::strcmp(by, "mpi_rank") != 0) {
    refuse("KOKKOS_MAP_DEVICE_ID_BY", by, "random or mpi_rank");
  }
}

bool wants_kokkos_configuration() {
  const char* text = std::getenv("KOKKOS_PRINT_CONFIGURATION");
  return text != nullptr && is_yes(text);
}

}  // namespace katt::impl
