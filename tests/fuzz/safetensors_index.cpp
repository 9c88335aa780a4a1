// The index of a checkpoint in shards (io/safetensors.hpp), beside two of them.

#include "io/safetensors.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

namespace {

/// A folder with shard-1.safetensors, which holds a and b, and shard-2.safetensors, which holds c.
const fuzz::Folder& folder() {
  static const fuzz::Folder made;
  static const bool filled = [] {
    const std::vector<float> values{1, 2};
    const katt::io::SafetensorsTensor a{.name = "a", .shape = {2}, .values = values};
    const katt::io::SafetensorsTensor b{.name = "b", .shape = {1, 2}, .values = values};
    const katt::io::SafetensorsTensor c{.name = "c", .shape = {2, 1}, .values = values};
    katt::io::write_safetensors(made.path() / "shard-1.safetensors", std::vector{a, b}, {});
    katt::io::write_safetensors(made.path() / "shard-2.safetensors", std::vector{c}, {});
    return true;
  }();
  static_cast<void>(filled);
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(folder().file("model.safetensors.index.json", fuzz::text_of(data, size)));
  fuzz::is_taken([] {
    const katt::io::Safetensors file(folder().path());
    for (const std::string& name : file.names()) {
      fuzz::require(name == "a" || name == "b" || name == "c", "a tensor that no shard holds");
    }
  });
  return 0;
}
