// Trains the same model in f32, bf16 and f16 with a dynamic loss scale; masters stay f32.
#include <cmath>
#include <cstdio>

#include "examples/example_model.hpp"
#include "training/trainer.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  const auto folder = example_model("precision");
  const auto config = katt::nn::read_config(folder);
  const katt::training::TokenData data(example_text(), config.vocab_size, "example");
  float exact = 0;
  for (const katt::Dtype dtype : katt::all_dtypes) {
    katt::training::TrainOptions options{
        .shape = {.batch = 4, .seq = 64}, .dtype = dtype, .schedule = {.rate = 3e-3}};
    if (dtype == katt::Dtype::f16) options.scaling = {.is_dynamic = true, .initial = 65536.0};
    katt::training::Trainer<Exec> trainer(Exec(), config, options, folder, 1);
    int skipped = 0;
    for (int step = 0; step < 15; ++step) skipped += trainer.step(data).skipped ? 1 : 0;
    const auto& last = trainer.log().back();
    std::printf("%-5s loss %.4f, scale %g, %d steps skipped\n", std::string(name_of(dtype)).c_str(),
                last.loss, last.loss_scale, skipped);
    if (dtype == katt::Dtype::f32) exact = last.loss;
    if (std::abs(last.loss - exact) > 0.1F * exact) return 1;
  }
  return 0;
}
