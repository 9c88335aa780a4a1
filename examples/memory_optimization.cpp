// The savings of gradient checkpointing and 16 bits: forecast, and measured by the tracker.
#include <cstdio>

#include "examples/example_model.hpp"
#include "memory/tracker.hpp"
#include "training/trainer.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  katt::memory::install();
  using Exec = Kokkos::DefaultExecutionSpace;
  using katt::nn::Recompute;
  const int layers = 8;
  const auto folder = example_model("memory", layers);
  const auto config = katt::nn::read_config(folder);
  const katt::training::TokenData data(example_text(), config.vocab_size, "example");

  struct Choice {
    const char* name;
    katt::Dtype dtype;
    Recompute recompute;
  };
  double previous = 1e30;
  for (const Choice& choice :
       {Choice{"f32, everything kept", katt::Dtype::f32, Recompute::nothing},
        Choice{"bf16", katt::Dtype::bf16, Recompute::nothing},
        Choice{"bf16, cheap parts again", katt::Dtype::bf16, Recompute::cheap},
        Choice{"bf16, blocks again", katt::Dtype::bf16, Recompute::all}}) {
    katt::training::TrainOptions options{.shape = {.batch = 8, .seq = 128}, .dtype = choice.dtype};
    options.recompute.assign(layers, choice.recompute);
    const auto forecast = katt::training::training_memory(Exec(), config, options);
    const katt::memory::Scope scope;
    katt::training::Trainer<Exec> trainer(Exec(), config, options, folder, 1);
    const auto log = trainer.step(data);
    const double measured = static_cast<double>(scope.peak_bytes());
    std::printf("%-24s activations %5.1f MB, forecast %5.1f MB, measured %5.1f MB, loss %.5f\n",
                choice.name, static_cast<double>(forecast.activations) / 1e6,
                static_cast<double>(forecast.total()) / 1e6, measured / 1e6, log.loss);
    if (measured >= previous) return 1;
    previous = measured;
  }
  return 0;
}
