// Opens a LLaMA and continues a prompt with a KV cache. With an argument: the folder of a Hugging
// Face checkpoint; without one a random model, whose answer means nothing.
#include <cstdio>

#include "examples/example_model.hpp"
#include "nn/inference/generate.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  const auto folder = argc > 1 ? std::filesystem::path(argv[1]) : example_model("inference");
  const auto model = katt::nn::open_model(Exec(), folder, katt::Dtype::bf16, 1);

  const std::vector<std::int64_t> prompt{72, 101, 108, 108, 111};
  katt::nn::Session session(model, {.capacity = 64});
  const auto made = katt::nn::generate(
      session, model.config(), prompt,
      {.max_new_tokens = 32, .sampling = {.temperature = 0.8, .top_k = 40, .seed = 1}});
  for (const std::int64_t token : made.tokens) std::printf("%lld ", static_cast<long long>(token));
  std::printf("\ncache %zu bytes; first token after %.2g s, then %.0f tokens/s\n",
              session.cache_bytes(), made.prefill_s, 31 / made.decode_s);
  return made.tokens.size() == 32 ? 0 : 1;
}
