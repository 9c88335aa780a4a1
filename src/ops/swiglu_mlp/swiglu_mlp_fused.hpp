#pragma once

#include <cstddef>
#include <vector>

#include "ops/swiglu_mlp/swiglu_mlp.hpp"

/// The fused variants: h exists for one block of tokens and intermediate columns at a time, in the
/// dtype of x; gate and up exist in the backward pass and on devices alone, for such a block.
///
/// Forward, for every block of tokens t:
///   for every block of intermediate columns f:
///     h = silu(x[t] · w_gate[f]ᵀ) · (x[t] · w_up[f]ᵀ)           (tile.tokens, tile.columns)
///     sum += h · w_down[:, f]ᵀ                                  (tile.tokens, hidden)
///   out[t] = sum, rounded once
///
/// On a host h is one gated product (linear/gemm/gemm.hpp); there the default block has all columns of
/// most models forward, so that `fused` takes the same products as `naive` for fewer tokens at a time, and
/// all tokens of most batches backward. On a device gate and up are two products.
///
/// Backward, for every block f, for every block t:
///     gate, up as above;  dh = dout[t] · w_down[:, f]
///     gate, up, dh ← dgate, dup, h
///     dw_gate[f] += gateᵀ · x[t],  dw_up[f] += upᵀ · x[t],  dw_down[:, f] += dout[t]ᵀ · dh
///     dx[t] += gate · w_gate[f] + up · w_up[f]
///
/// The loop over f is the outer one, so that the sums of the weight gradients are no larger than a
/// block. Sums of 16-bit gradients are kept in f32 and rounded once.
namespace katt::swiglu_mlp::impl {

/// A block of gate and up: the parameters tile_q and tile_kv.
struct Tile {
  int tokens, columns;
  Tile(const Setting& setting) : tokens(setting.at(0)), columns(setting.at(1)) {}  // NOLINT
};

/// The tiles that can be asked for; the first is the default of a host's forward pass.
const std::vector<Setting>& fused_tiles();

template <class Exec>
std::size_t fused_workspace_bytes(const Exec& exec, const ForwardArgs& args, Tile tile);
template <class Exec>
std::size_t fused_workspace_bytes(const Exec& exec, const BackwardArgs& args, Tile tile);

template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace);
template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args, Tile tile, Workspace workspace);

}  // namespace katt::swiglu_mlp::impl
