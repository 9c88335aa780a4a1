#include "nn/llama_block/llama_block.hpp"

#include "core/error.hpp"

namespace katt::llama_block {

std::int64_t Shape::parameters() const {
  return hidden * (qkv_size() + q_size() + 3 * intermediate + 2);
}

void check_heads(const Shape& shape) {
  if (shape.heads % shape.kv_heads != 0) {
    throw InputError("kv_heads " + std::to_string(shape.kv_heads) +
                     ": expected a divisor of heads, " + std::to_string(shape.heads));
  }
  if (shape.head_dim % 8 != 0) {
    throw InputError("head_dim " + std::to_string(shape.head_dim) + ": expected a multiple of 8");
  }
}

nn::LlamaConfig config_of(const Shape& shape) {
  nn::LlamaConfig config;
  config.vocab_size = 1;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.num_hidden_layers = 1;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.max_position_embeddings = shape.seq;
  config.rms_norm_eps = 1e-5F;
  config.rope = {};
  return config;
}

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> all = [] {
    nn::Kernels naive;
    naive.rmsnorm = naive.linear = naive.rope = naive.swiglu = naive.attention = "naive";
    naive.products_add = false;
    std::vector<Composition> list{
        {"naive", "every operator unfused: residual sums, norms, RoPE, stored scores, activation",
         naive},
        {"fused", "what the model uses", {}}};
    const auto but = [&](const std::string& op, const auto& change) {
      list.push_back({"naive_" + op, "fused, but " + op, {}});
      change(list.back().kernels);
    };
    but("attention", [](nn::Kernels& k) { k.attention = "naive"; });
    but("linear", [](nn::Kernels& k) {
      k.linear = "naive";
      k.products_add = false;
    });
    but("rmsnorm", [](nn::Kernels& k) { k.rmsnorm = "naive"; });
    but("rope", [](nn::Kernels& k) { k.rope = "naive"; });
    but("swiglu", [](nn::Kernels& k) { k.swiglu = "naive"; });
    return list;
  }();
  return all;
}

double flops(const Shape& shape, bool backward) {
  const auto tokens = static_cast<double>(shape.tokens());
  const double weights = static_cast<double>(shape.parameters() - 2 * shape.hidden);
  const double visible = tokens * (static_cast<double>(shape.seq) + 1) / 2;
  const double products = 2 * tokens * weights;
  const double attention = 4 * visible * static_cast<double>(shape.q_size());
  return backward ? 2 * products + 2.5 * attention : products + attention;
}

double bytes(const Shape& shape, Dtype dtype, bool backward) {
  const auto element = static_cast<double>(size_of(dtype));
  const auto tokens = static_cast<double>(shape.tokens());
  const auto hidden = static_cast<double>(shape.hidden);
  const auto weights = static_cast<double>(shape.parameters());
  if (!backward) return element * (weights + 4 * tokens * hidden);
  // x, n₁, h, n₂, dout and dx; q, k, v and the output of attention; gate, up and their product
  const double columns = 6 * hidden + static_cast<double>(shape.qkv_size() + shape.q_size()) +
                         3 * static_cast<double>(shape.intermediate);
  return element * (weights + tokens * columns) + sizeof(float) * weights;
}

}  // namespace katt::llama_block
