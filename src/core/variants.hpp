#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/status.hpp"
#include "core/tensor.hpp"

namespace katt {

/// Extents of a tile: queries × keys for attention; other operators say what the two mean.
/// {0, 0} asks for the variant's default.
struct Tile {
  int q = 0;
  int kv = 0;
  friend bool operator==(const Tile&, const Tile&) = default;
};

/// Which kernel is to run: a variant by name, with a tile where the variant has tiles.
struct Config {
  std::string variant;
  Tile tile{};
};

/// One way to compute an operation on an execution space. Built-in variants and those that a user's
/// program registers have the same form.
template <class Exec, class Args>
struct Variant {
  std::string name;
  std::string description;
  /// The tiles that can be asked for; empty when the variant takes none.
  std::vector<Tile> tiles;
  /// Whether it can run these arguments: ok, or skipped with the reason. Launches nothing.
  std::function<Status(const Exec&, const Args&, Tile)> supports;
  /// Bytes of workspace that run() needs for these arguments.
  std::function<std::size_t(const Exec&, const Args&, Tile)> workspace_bytes;
  /// Launches the operation on the instance; does not wait for it.
  std::function<void(const Exec&, const Args&, Tile, Workspace)> run;
  /// Which units of the machine run() uses for these arguments, e.g. "amx", "avx512", "blas";
  /// absent where the variant always uses the vectors that the build is for.
  std::function<std::string(const Exec&, const Args&, Tile)> engine{};
  /// The default tile for these arguments, where it depends on them; else the first of `tiles`.
  std::function<Tile(const Args&)> default_tile{};

  /// The tile that a request means: {0, 0} is the default.
  Tile resolve(const Args& args, Tile tile) const {
    if (tile != Tile{} || tiles.empty()) return tile;
    return default_tile ? default_tile(args) : tiles.front();
  }

  /// supports(), and a refusal of a tile where the variant takes none.
  Status check(const Exec& exec, const Args& args, Tile tile) const {
    if (tiles.empty() && tile != Tile{}) {
      return Status::skipped("variant " + name + " takes no tile");
    }
    return supports(exec, args, tile);
  }
};

/// The variants of one operation, in order of registration. The first is the naive baseline.
template <class Exec, class Args>
class VariantTable {
 public:
  VariantTable(std::initializer_list<Variant<Exec, Args>> built_in) {
    for (const auto& variant : built_in) add(variant);
  }

  /// Adds a variant. Throws InputError when the name is taken.
  void add(Variant<Exec, Args> variant) {
    for (const auto& known : variants_) {
      if (known.name == variant.name) {
        throw InputError("variant " + variant.name + ": the name is taken");
      }
    }
    variants_.push_back(std::move(variant));
  }

  const std::vector<Variant<Exec, Args>>& all() const { return variants_; }

  /// The variant of that name. Throws InputError, which lists the known names.
  const Variant<Exec, Args>& find(const std::string& name) const {
    std::string known;
    for (const auto& variant : variants_) {
      if (variant.name == name) return variant;
      known += (known.empty() ? "" : ", ") + variant.name;
    }
    throw InputError("variant " + name + ": unknown; expected one of " + known);
  }

  /// The configuration that a request means: its tile, or the variant's default.
  Config resolve(const Args& args, const Config& config) const {
    return {config.variant, find(config.variant).resolve(args, config.tile)};
  }

  /// Whether the variant and tile of `config` can run these arguments: ok, or skipped with the
  /// reason. Throws InputError for an unknown variant. Launches nothing.
  Status supports(const Exec& exec, const Args& args, const Config& config) const {
    const auto& variant = find(config.variant);
    return variant.check(exec, args, variant.resolve(args, config.tile));
  }

  /// Bytes of workspace that run() needs; 0 where supports() refuses.
  std::size_t workspace_bytes(const Exec& exec, const Args& args, const Config& config) const {
    const auto& variant = find(config.variant);
    const Tile tile = variant.resolve(args, config.tile);
    return variant.check(exec, args, tile).is_ok() ? variant.workspace_bytes(exec, args, tile) : 0;
  }

  /// What run() computes with; "" where the variant does not say.
  std::string engine(const Exec& exec, const Args& args, const Config& config) const {
    const auto& variant = find(config.variant);
    return variant.engine ? variant.engine(exec, args, variant.resolve(args, config.tile)) : "";
  }

  /// Launches the variant, or refuses as supports() does. Throws InputError when the workspace is
  /// too small.
  Status run(const Exec& exec, const Args& args, const Config& config, Workspace workspace) const {
    const auto& variant = find(config.variant);
    const Tile tile = variant.resolve(args, config.tile);
    if (Status status = variant.check(exec, args, tile); !status.is_ok()) return status;
    if (const std::size_t needed = variant.workspace_bytes(exec, args, tile);
        workspace.bytes < needed) {
      throw InputError("variant " + variant.name + ": workspace holds " +
                       std::to_string(workspace.bytes) + " bytes, expected " +
                       std::to_string(needed));
    }
    variant.run(exec, args, tile, workspace);
    return Status::ok();
  }

 private:
  std::vector<Variant<Exec, Args>> variants_;
};

}  // namespace katt

/// Instantiates what an operator with a forward and a backward pass declares in its header for an
/// execution space; for KATT_FOR_EACH_EXEC.
#define KATT_INSTANTIATE_PASSES(Exec)                                                       \
  template VariantTable<Exec, ForwardArgs>& forward_variants<Exec>();                       \
  template VariantTable<Exec, BackwardArgs>& backward_variants<Exec>();                     \
  template Status forward<Exec>(const Exec&, const ForwardArgs&, const Config&, Workspace); \
  template Status backward<Exec>(const Exec&, const BackwardArgs&, const Config&, Workspace);
