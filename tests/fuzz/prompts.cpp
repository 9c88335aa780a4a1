// A file of prompts (drivers/options/prompts.hpp).

#include "drivers/options/prompts.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto path = folder.file("prompts.txt", fuzz::text_of(data, size));
  fuzz::is_taken([&] {
    const katt::impl::Prompts prompts = katt::impl::read_prompts(path);
    fuzz::require(!prompts.empty(), "no prompt is taken for some");
    for (const auto& prompt : prompts) katt::impl::check_vocabulary(prompt, "prompts.txt", 32000);
  });
  return 0;
}
