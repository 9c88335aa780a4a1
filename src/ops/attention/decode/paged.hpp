#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"

namespace katt::attention {

/// Arguments of decoding against a paged cache (Kwon et al. 2023, PagedAttention,
/// arXiv:2309.06180): attention as ForwardArgs describes it, where key j of batch entry b lies in
/// slot j mod page_size of page block_table(b, j / page_size). All pages have one size; page
/// numbers beyond a sequence's length are never read.
struct PagedArgs {
  ConstTensorRef<4> q;        ///< (batch, heads, seq_q, head_dim)
  ConstTensorRef<4> k_pages;  ///< (pages, kv_heads, page_size, head_dim), any strides
  ConstTensorRef<4> v_pages;  ///< (pages, kv_heads, page_size, head_dim), any strides
  /// (batch, pages_per_sequence), row-major, page numbers in [0, pages), in the memory of the
  /// backend
  const std::int64_t* block_table = nullptr;
  std::int64_t pages_per_sequence = 0;  ///< columns of the block table
  TensorRef<4> out;                     ///< (batch, heads, seq_q, head_dim)
  TensorRef<3> lse{};                   ///< (batch, heads, seq_q) f32, natural logarithm; optional
  float scale = 0.0F;                   ///< factor of Q·Kᵀ, usually 1 / √head_dim
  ScoreArgs score{};                    ///< softcap and ALiBi
  MaskArgs mask{};                      ///< kv_len is required: the keys that each sequence holds

  std::int64_t batch() const { return q.extent[0]; }            ///< sequences
  std::int64_t heads() const { return q.extent[1]; }            ///< query heads
  std::int64_t kv_heads() const { return k_pages.extent[1]; }   ///< key/value heads
  std::int64_t seq_q() const { return q.extent[2]; }            ///< queries of a sequence
  std::int64_t page_size() const { return k_pages.extent[2]; }  ///< tokens of a page
  /// Keys that a row of the block table has room for.
  std::int64_t seq_kv() const { return pages_per_sequence * page_size(); }
  std::int64_t head_dim() const { return q.extent[3]; }  ///< elements of a head
};

/// The variants that read a paged cache; the first, and only built-in one, is "decode".
template <class Exec>
VariantTable<Exec, PagedArgs>& paged_variants();

/// Throws InputError when the shapes, strides, dtypes or mask of the arguments do not fit together.
void check(const PagedArgs& args);

/// Bytes of workspace that decode() needs. Throws like decode().
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const PagedArgs& args,
                                          const Config& config);

/// Launches attention over a paged cache on the execution space instance and returns without
/// waiting for it. Returns skipped with the reason, and launches nothing, when the variant cannot
/// run these arguments with this tile. Throws InputError for arguments that check() refuses, an
/// unknown variant, and a workspace smaller than workspace_bytes().
template <class Exec>
Status decode(const Exec& exec, const PagedArgs& args, const Config& config, Workspace workspace);

}  // namespace katt::attention
