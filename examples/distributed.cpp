// Trains a LLaMA on all ranks that mpirun started, two of them sharing every matrix where their number
// is even and the others sharing the rows of a step: mpirun -n 4 distributed. Alone it is one rank.
#include <cmath>
#include <cstdio>

#include "examples/example_model.hpp"
#include "ranks/environment.hpp"
#include "training/trainer.hpp"

int main(int argc, char** argv) {
  const katt::ranks::Environment environment;  // MPI, before Kokkos
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  using katt::TensorRef;
  const katt::ranks::Communicator ranks = katt::ranks::world();
  const int count = ranks.size();

  // An operation of all ranks: sums are taken in the order of the ranks, the same bits on each.
  const Exec exec;
  const Kokkos::View<float*, Exec> values("example::values", 1000);
  Kokkos::deep_copy(exec, values, static_cast<float>(ranks.rank() + 1));
  ranks.all_reduce(exec, TensorRef<1>(values.data(), katt::Dtype::f32, {1000})).wait();
  float sum = 0;
  Kokkos::deep_copy(sum, Kokkos::subview(values, 0));
  if (sum != static_cast<float>(count * (count + 1)) / 2) return 1;

  // Each rank holds its part of the model and takes its part of every step's rows.
  const int tensor = count % 2 == 0 ? 2 : 1;
  const auto folder = example_model("distributed-" + std::to_string(ranks.rank()));
  const auto config = katt::nn::read_config(folder);
  const katt::training::TokenData data(example_text(), config.vocab_size, "example");
  katt::training::TrainOptions options{.shape = {.batch = 4, .seq = 64},
                                       .accumulation = 2,
                                       .schedule = {.rate = 3e-3, .warmup = 2, .steps = 10}};
  const auto losses = [&] {
    katt::training::Trainer<Exec> trainer(exec, config, options, folder, 1);
    for (int step = 0; step < 10; ++step) (void)trainer.step(data);
    return std::pair(trainer.log().front().loss, trainer.log().back().loss);
  };
  const auto alone = losses();
  const bool zero = count > tensor;  // data parallel ranks share the optimizer's state
  options.groups = katt::ranks::Groups(ranks, katt::ranks::layout_of(count, tensor, 1, 1, zero));
  const auto together = losses();
  if (ranks.rank() == 0) {
    std::printf("%s: loss %.4f to %.4f, of one rank %.4f\n",
                katt::ranks::to_text(options.groups.place.layout).c_str(), together.first,
                together.second, alone.second);
  }
  return std::abs(together.second - alone.second) < 1e-3F * alone.second ? 0 : 1;
}
