#include "machine/huge_pages.hpp"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace katt::memory {

namespace {

constexpr const char* folder = "/sys/kernel/mm/transparent_hugepage/";

/// The word in brackets in "always [madvise] never"; "never" when there is no such file.
std::string mode_of_the_system() {
  std::ifstream file(std::string(folder) + "enabled");
  std::string text;
  std::getline(file, text);
  const auto begin = text.find('[');
  const auto end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "never";
  return text.substr(begin + 1, end - begin - 1);
}

std::string mode() {
  const char* wanted = std::getenv("KATT_HUGE_PAGES");  // NOLINT(concurrency-mt-unsafe)
  if (wanted != nullptr && std::string_view(wanted) == "0") return "off";
  std::string of_system = mode_of_the_system();
  return of_system == "madvise" ? "asked for" : of_system;
}

/// Bytes of a huge page; 0 when this program requests none.
std::size_t asked_size() {
  if (mode() != "asked for") return 0;
  std::ifstream file(std::string(folder) + "hpage_pmd_size");
  std::size_t bytes = 0;
  file >> bytes;
  // On a system with larger pages than usual, a huge page is half a gigabyte: too much to round up
  // to.
  constexpr std::size_t most = std::size_t{32} << 20;
  return bytes <= most ? bytes : 0;
}

}  // namespace

std::string huge_pages() { return mode(); }

void prefer_huge_pages([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  static const std::size_t page = asked_size();
  if (page == 0 || bytes < 2 * page) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + bytes) / page * page;
  if (first < end) {
    (void)madvise(reinterpret_cast<void*>(first), end - first,  // NOLINT(performance-no-int-to-ptr)
                  MADV_HUGEPAGE);
  }
#endif
}

}  // namespace katt::memory
