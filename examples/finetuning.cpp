// Fine-tunes a LLaMA with gradient checkpointing, saves it, and continues from the saved state.
#include <cstdio>

#include "examples/example_model.hpp"
#include "training/trainer.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  using katt::nn::Recompute;
  const auto folder = argc > 1 ? std::filesystem::path(argv[1]) : example_model("finetuning");
  const auto config = katt::nn::read_config(folder);
  const katt::training::TokenData data(example_text(), config.vocab_size, "example");

  katt::training::TrainOptions options{.shape = {.batch = 4, .seq = 64},
                                       .accumulation = 2,
                                       .schedule = {.rate = 3e-3, .warmup = 2, .steps = 20}};
  // Block 0 keeps its input alone, and is computed again in the backward pass.
  options.recompute = {Recompute::all, Recompute::nothing};
  katt::training::Trainer<Exec> trainer(Exec(), config, options, folder, 1);
  for (int step = 0; step < 10; ++step) {
    const auto log = trainer.step(data);
    std::printf("step %d loss %.3f\n", step, log.loss);
  }
  const auto out = folder / "tuned";
  trainer.save(out);

  katt::training::Trainer<Exec> later(Exec(), config, options, folder, 1);
  later.resume(out);
  while (later.steps() < 20) (void)later.step(data);
  std::printf("step 19 loss %.3f\n", later.log().back().loss);
  return later.log().back().loss < later.log().front().loss ? 0 : 1;
}
