#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include <Kokkos_Core.hpp>

#include "machine/huge_pages.hpp"
#include "memory/tracker.hpp"

namespace katt::memory {
namespace {

using Bytes = Kokkos::View<std::byte*, Kokkos::HostSpace>;

Bytes uninitialized(std::size_t bytes) {
  return Bytes(Kokkos::view_alloc(std::string("katt::test::bytes"), Kokkos::WithoutInitializing),
               bytes);
}

/// Flags of the mapping that holds an address, as Linux tells them: "hg" where huge pages were asked
/// for.
std::string flags_at(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (text >> std::hex >> begin >> dash >> end && dash == '-') {
      here = begin <= wanted && wanted < end;
    } else if (here && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return {};
}

TEST(HugePages, AreAskedForLargeAllocationsOnly) {
  if (huge_pages() != "asked for") GTEST_SKIP() << "huge pages: " << huge_pages();
  install();
  constexpr std::size_t mebi = std::size_t{1} << 20;
  const Bytes large = uninitialized(64 * mebi);
  EXPECT_NE(flags_at(large.data() + 32 * mebi).find(" hg"), std::string::npos);
  const Bytes small = uninitialized(1 * mebi);
  EXPECT_EQ(flags_at(small.data()).find(" hg"), std::string::npos);
  Kokkos::deep_copy(large, std::byte{7});
  EXPECT_EQ(large(0), std::byte{7});
  EXPECT_EQ(large(64 * mebi - 1), std::byte{7});
}

TEST(HugePages, SayWhatIsDone) {
  const std::string told = huge_pages();
  EXPECT_TRUE(told == "asked for" || told == "always" || told == "never" || told == "off") << told;
}

}  // namespace
}  // namespace katt::memory
