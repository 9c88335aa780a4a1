// The header of a safetensors file (io/safetensors.hpp).

#include "io/safetensors.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_header)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  katt::io::SafetensorsHeader header;
  if (!fuzz::is_taken([&] {
        header =
            katt::io::parse_safetensors("model.safetensors", std::as_bytes(std::span(data, size)));
      })) {
    return 0;
  }
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : header.tensors) {
    fuzz::require(tensor.begin <= tensor.end && tensor.end <= size, "a range outside of the file");
    bytes += tensor.end - tensor.begin;
  }
  fuzz::require(bytes <= size, "ranges that overlap");
  return 0;
}
