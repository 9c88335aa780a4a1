#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, section 3.2.2): pair i of a head's
/// elements is turned by the angle position · frequency(i).
///
///   out(a) = x(a) · cos − x(b) · sin
///   out(b) = x(b) · cos + x(a) · sin
///     a, b = i, i + head_dim/2   half-rotation (LLaMA checkpoints of Hugging Face, GPT-NeoX)
///     a, b = 2i, 2i + 1          interleaved (Meta's LLaMA, GPT-J)
///   frequency(i) = theta^(−2i / head_dim), 0 ≤ i < head_dim/2, then scaled
///
/// Backward: the gradient is turned by the negative angle.
namespace katt::rope {

/// How the frequencies of a model trained on short sequences are stretched to long ones.
enum class Scaling : std::uint8_t {
  none,  ///< frequencies as they are
  /// LLaMA 3.1: with wavelength w = 2π / frequency, o = original_max_position,
  ///   frequency           where w < o / high_freq_factor
  ///   frequency / factor  where w > o / low_freq_factor
  ///   between them (1 − t) · frequency / factor + t · frequency,
  ///     t = (o / w − low_freq_factor) / (high_freq_factor − low_freq_factor)
  llama3,
};

/// In which arithmetic the angles are made. The cosines and sines are f32 either way.
enum class AnglePrecision : std::uint8_t {
  /// Frequencies and angles in float64: exact to the f32 of the table at any position.
  f64,
  /// Frequencies and angles rounded to float32 step by step as Hugging Face's LLaMA does; the angle
  /// of position p is then wrong by up to p · 2^-23.
  f32,
};

/// The parameters of the angles.
struct FrequencyArgs {
  double theta = 10000.0;  ///< base: frequency(i) = theta^(−2i / head_dim), in radians per position
  Scaling scaling = Scaling::none;                 ///< how frequencies are stretched
  double factor = 8.0;                             ///< of llama3
  double low_freq_factor = 1.0;                    ///< of llama3
  double high_freq_factor = 4.0;                   ///< of llama3
  std::int64_t original_max_position = 8192;       ///< of llama3
  AnglePrecision precision = AnglePrecision::f64;  ///< arithmetic of the angles
};

/// Largest head_dim. Every even one up to it is accepted.
inline constexpr std::int64_t max_head_dim = 512;

/// frequency(i) for the head_dim/2 pairs, in radians per position. Throws InputError for a head_dim
/// that is odd or too large, a theta that is not positive, and scaling factors that mean nothing.
[[nodiscard]] std::vector<double> frequencies(const FrequencyArgs& args, std::int64_t head_dim);

/// Fills a cache: row r holds cos and then sin of the head_dim/2 angles of position `positions[r]`,
/// of r itself where `positions` is null. Built once, read by every layer and step.
///   cache      (rows, head_dim) f32, dense, in the memory of the backend
///   positions  (rows) in the memory of the backend, |position| ≤ 2^53
/// Launches katt::rope::cache on the instance and does not wait. Throws like frequencies(), and for
/// a cache of another dtype or with gaps.
template <class Exec>
void build_cache(const Exec& exec, const FrequencyArgs& args, const TensorRef<2>& cache,
                 const std::int64_t* positions = nullptr);

/// Arguments of the forward pass. Tensors share one dtype, lie in the memory of the backend, and
/// may have any strides as long as the last axis is contiguous. `out` may be `x` itself (in place),
/// else they do not overlap.
struct ForwardArgs {
  ConstTensorRef<4> x;  ///< (batch, heads, seq, head_dim), e.g. Q
  TensorRef<4> out;     ///< (batch, heads, seq, head_dim), x turned
  /// A second tensor (batch, kv_heads, seq, head_dim) turned in the same launch, e.g. K; optional.
  ConstTensorRef<4> x2{};
  TensorRef<4> out2{};        ///< (batch, kv_heads, seq, head_dim), x2 turned; with x2
  ConstTensorRef<2> cache{};  ///< (rows, head_dim) f32 from build_cache()
  /// Position of every query, that is its row of the cache: (batch, seq) in the memory of the
  /// backend; null: first_position, first_position + 1, … in every sequence. A row that the cache
  /// lacks gives NaN.
  const std::int64_t* positions = nullptr;
  std::int64_t first_position = 0;  ///< position of the first token, where there are no positions
  bool interleaved = false;         ///< pairs (2i, 2i + 1); else (i, i + head_dim / 2)

  std::int64_t batch() const { return x.extent[0]; }     ///< sequences
  std::int64_t heads() const { return x.extent[1]; }     ///< heads of x
  std::int64_t seq() const { return x.extent[2]; }       ///< tokens of a sequence
  std::int64_t head_dim() const { return x.extent[3]; }  ///< elements of a head
};

/// Arguments of the backward pass, as those of the forward pass: dx from dout.
struct BackwardArgs {
  ConstTensorRef<4> dout;     ///< (batch, heads, seq, head_dim), gradient of out
  TensorRef<4> dx;            ///< (batch, heads, seq, head_dim); may be the memory of dout
  ConstTensorRef<4> dout2{};  ///< (batch, kv_heads, seq, head_dim), gradient of out2; optional
  TensorRef<4> dx2{};         ///< (batch, kv_heads, seq, head_dim); with dout2
  ConstTensorRef<2> cache{};  ///< (rows, head_dim) f32 from build_cache()
  const std::int64_t* positions = nullptr;  ///< (batch, seq) as in ForwardArgs; null: counted
  std::int64_t first_position = 0;          ///< as in ForwardArgs
  bool interleaved = false;                 ///< as in ForwardArgs
};

/// The variants of an execution space; the first is "naive". A program adds its own with add().
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes, strides or dtypes of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Bytes of workspace that forward() or backward() needs. Throws like them.
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const ForwardArgs& args,
                                          const Config& config);
/// The same for the backward pass.
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                          const Config& config);

/// Launches a pass on the execution space instance and returns without waiting for it. Returns
/// skipped with the reason, and launches nothing, when the variant cannot run here. Throws
/// InputError for arguments that check() refuses, an unknown variant, and a workspace smaller than
/// workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs of either pass: 6 a pair.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic of either pass in bytes: x and x2 read once, out and out2 written once,
/// `cache_rows` rows of the cache and the positions read once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args, std::int64_t cache_rows);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args, std::int64_t cache_rows);

}  // namespace katt::rope
