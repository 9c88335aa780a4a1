// A sweep file in TOML, up to the plan of its cases (plan/sweep_file.hpp, plan/plan.hpp).

#include "plan/sweep_file.hpp"

#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/registry.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto path = folder.file("sweep.toml", fuzz::text_of(data, size));
  fuzz::is_taken([&] {
    const auto request = katt::bench::read_sweep_file(path, fuzz::registry());
    fuzz::plan(request);
  });
  return 0;
}
