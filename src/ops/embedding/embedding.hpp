#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Rows of a table by index:
///
///   out(t, ·) = weight(ids(t), ·),   dweight(v, ·) = Σ_{t: ids(t) = v} dout(t, ·)
///
/// An id outside 0 … vocab − 1 gives a row of NaN and no gradient.
namespace katt::embedding {

/// Arguments of the forward pass, in the memory of the backend; rows may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> weight;           ///< (vocab, hidden)
  const std::int64_t* ids = nullptr;  ///< (tokens)
  TensorRef<2> out;                   ///< (tokens, hidden), of the dtype of weight
};

/// Arguments of the backward pass.
struct BackwardArgs {
  ConstTensorRef<2> dout;             ///< (tokens, hidden)
  const std::int64_t* ids = nullptr;  ///< (tokens)
  TensorRef<2> dweight;               ///< (vocab, hidden), of the dtype of dout; written everywhere
};

/// The variants of an execution space. Forward: "naive" (one element at a time) and "rows" (vectors
/// of rows). Backward: "naive" (a table of f32 sums cleared, added to token by token, rounded) and
/// "rows" (each row summed in registers from its list of tokens and written once).
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes or dtypes of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the pass on the execution space instance and returns without waiting for it. Sums are
/// f32, in the order of the tokens, so that the bits do not depend on the number of threads. Throws
/// InputError for arguments that check() refuses, an unknown variant, and a workspace smaller than
/// the table's workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Least traffic in bytes. Forward: the gathered rows read and written. Backward: dout read once,
/// dweight written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::embedding
