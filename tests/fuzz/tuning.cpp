// A tuning file (plan/tuning.hpp).

#include "plan/tuning.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  std::string text;
  const auto path = folder.file("tuning.json", fuzz::text_of(data, size));
  if (!fuzz::is_taken([&] { text = katt::bench::Tuning::read(path).json(); })) return 0;
  const std::string again = katt::bench::Tuning::read(folder.file("again.json", text)).json();
  fuzz::require(again == text, "what was written does not read back");
  return 0;
}
