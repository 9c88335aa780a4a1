// The syntax of axes and tiles (plan/axes.hpp): a line with the name of an axis, a line with its text.

#include "plan/axes.hpp"

#include "plan/plan.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/registry.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = std::min(input.find('\n'), input.size());
  const std::string name = katt::bench::canonical_key(input.substr(0, end));
  const katt::bench::AxisText typed{
      .key = name,
      .text = std::string(input.substr(std::min(end + 1, input.size()))),
      .where = "--axis"};
  fuzz::is_taken([&] { static_cast<void>(katt::bench::parse_tiles(typed)); });
  for (const katt::bench::Operator* op : fuzz::registry().all()) {
    for (const auto& specs : {op->axes(), katt::bench::common_axes(*op)}) {
      for (const katt::bench::AxisSpec& spec : specs) {
        if (spec.name != name && spec.short_name != name) continue;
        fuzz::is_taken([&] {
          for (const katt::bench::AxisValue& value : katt::bench::parse_axis(spec, typed)) {
            const katt::bench::AxisText again{
                .key = name, .text = katt::bench::to_text(value), .where = "--axis"};
            fuzz::require(katt::bench::parse_axis(spec, again) == std::vector{value},
                          "a value that does not read back");
          }
        });
      }
    }
  }
  return 0;
}
