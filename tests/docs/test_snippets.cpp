// The C++ of documents that is a part of a program: each runs here as it stands there (tests/docs/test_code_blocks.py
// holds the documents against this file).
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "examples/example_model.hpp"
#include "memory/transfer.hpp"
#include "nn/device_memory.hpp"
#include "nn/inference/session.hpp"
#include "op/buffer.hpp"
#include "ops/attention/decode/paged.hpp"
#include "training/trainer.hpp"

namespace katt {
namespace {

using Exec = Host;
using Ids = std::vector<std::int64_t>;

TEST(Snippets, InferenceMd) {
  const std::filesystem::path folder = example_model("snippets");
  const std::uint64_t seed = 1;
  const Ids prompts(4 * 3, 65), next_tokens(4, 66);

  const auto model = katt::nn::open_model(Exec(), folder, katt::Dtype::bf16, seed);
  katt::nn::Session session(model, {.batch = 4, .capacity = 2048});
  std::vector<float> logits = session.append(prompts);  // (4, n) tokens → (4, vocab)
  logits = session.append(next_tokens);                 // one decoding step of the batch

  EXPECT_EQ(logits.size(), 4U * 256U);
  EXPECT_EQ(session.length(), 4);
}

TEST(Snippets, TrainingMd) {
  const std::filesystem::path folder = example_model("snippets"), out = folder / "tuned";
  const auto config = nn::read_config(folder);
  const training::TokenData data(example_text(), config.vocab_size, "example");
  const training::TrainOptions options{.shape = {.batch = 1, .seq = 32}, .schedule = {.steps = 2}};
  const std::uint64_t seed = 1;
  const std::int64_t n = 2;

  katt::training::Trainer<Exec> trainer(Exec(), config, options, folder, seed);
  while (trainer.steps() < n) {
    const katt::training::StepLog log = trainer.step(data);
    EXPECT_GT(log.loss, 0.0F);
  }
  trainer.save(out);

  EXPECT_TRUE(std::filesystem::exists(out / "model.safetensors"));
}

/// Room for (1, kv_heads, tokens, head_dim) bf16.
bench::Buffer tokens_of(std::int64_t heads, std::int64_t tokens) {
  return {"tokens", Backend::openmp, static_cast<std::size_t>(heads * tokens * 128 * 2)};
}

TEST(Snippets, KvCacheMd) {
  const Exec exec;
  const std::int64_t layer = 0, count = 1, heads = 8;
  const auto tensor = [](const bench::Buffer& buffer, std::int64_t tokens) {
    return TensorRef<4>(buffer.data(), Dtype::bf16, {1, heads, tokens, 128});
  };
  const auto memory = tokens_of(heads, 5);
  const TensorRef<4> k = tensor(memory, 1), v = k, keys = k, values = k;
  const bench::Buffer place("positions", Backend::openmp, sizeof(std::int64_t));
  auto* const positions = reinterpret_cast<std::int64_t*>(place.data());

  nn::KvCache<Exec> cache({.layers = 32,
                           .slots = 8,
                           .kv_heads = 8,
                           .head_dim = 128,
                           .capacity = 4096,
                           .dtype = Dtype::bf16,
                           .page_size = 64,
                           .pages = 8});
  const std::int64_t slot = cache.acquire();
  const Ids slots{slot}, counts{count};
  const auto query = tokens_of(heads, 1), result = tokens_of(heads, 1);
  attention::PagedArgs args;
  args.q = tensor(query, 1);
  args.out = tensor(result, 1);
  args.scale = 0.1F;

  cache.extend(exec, slots, counts);        // room, pages and lengths for this step's new tokens
  cache.positions(exec, positions, count);  // absolute positions, for rope
  cache.append(exec, layer, k, v);          // for every layer: K after rope, and V
  cache.gather(exec, layer, keys, values);  // one sequence out of its pages
  cache.read(layer, args);  // pages, block table and lengths of attention::PagedArgs
  const bench::Buffer scratch("workspace", Backend::openmp,
                              attention::workspace_bytes(exec, args, {"decode"}));
  const Workspace workspace = scratch.workspace();
  const Status status = attention::decode(exec, args, {"decode"}, workspace);
  exec.fence();

  EXPECT_TRUE(status.is_ok()) << status.reason();
  EXPECT_EQ(cache.length(slot), 1);
}

TEST(Snippets, MemoryMd) {
  const Exec exec, from_exec, to_exec;
  const std::vector<float> values(64, 1.5F);
  std::vector<std::uint16_t> weights(64), copied(64);

  memory::Transfer<Exec> transfer(exec);
  nn::write_elements(transfer, values, Dtype::bf16, weights.data());
  transfer.wait();
  EXPECT_EQ(weights[0], 0x3FC0);

  const void* const from = weights.data();
  void* const to = copied.data();
  const std::size_t bytes = 128;
  memory::copy(from_exec, from, to_exec, to, bytes);
  to_exec.fence();
  EXPECT_EQ(copied, weights);
}

}  // namespace
}  // namespace katt
