#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "measure/statistics.hpp"
#include "op/registry.hpp"
#include "plan/plan.hpp"

namespace katt::bench {

/// The fastest tile of a variant at one point, as `katt tune` measured it.
struct TunedTile {
  std::string op, pass, variant;
  std::string device;  ///< name of the processor
  Backend backend = Backend::openmp;
  int threads = 0;
  Dtype dtype = Dtype::f32;
  std::map<std::string, AxisValue, std::less<>> axes;
  Setting tile;
  Estimate time_s{};  ///< median with its 95 % interval
  Setting usual;      ///< the variant's default
  double usual_time_s = 0;
  double usual_ratio = 0;  ///< the default's time / the tile's, of the same rounds; 0: not known
  std::string machine{};   ///< machine_text(); empty in files of earlier versions
  std::string code{};      ///< name of the variant's code (op/code.hpp); "" where it has none
};

/// The point of a tile, before its setting and times are known.
[[nodiscard]] TunedTile tile_key(const Operator& op, const Point& point,
                                 const std::string& variant);

/// The best tiles of this machine: a JSON file that `katt tune` writes and `--tile auto` reads.
class Tuning {
 public:
  /// The content of a file; empty when it is missing. Throws InputError when it is not a tuning
  /// file.
  [[nodiscard]] static Tuning read(const std::filesystem::path& path);
  /// Adds tiles to a file: locks, reads and replaces it in one step, so that entries of other
  /// programs stay. Throws InputError when it is not a tuning file or cannot be written.
  static void update(const std::filesystem::path& path, std::span<const TunedTile> tiles);

  /// The content of such a file.
  [[nodiscard]] std::string json() const;

  /// Adds a tile, and replaces one for the same point.
  void put(TunedTile tile);

  /// The tile for a variant at a point: the tile of the nearest point tuned for the same operator,
  /// pass, variant, device, backend, threads and dtype, if the variant still lists it; else
  /// nothing. The distance is the sum of |log2| of the ratios of integer axes; a different choice
  /// counts as a factor of 256.
  [[nodiscard]] std::optional<Setting> find(const Operator& op, const Point& point,
                                            const std::string& variant) const;

  /// Warning for a user of find(): the tile is stale, because the variant's code or the
  /// machine is another one than when it was tuned; or the file has tiles of other machines only.
  /// Empty: nothing.
  [[nodiscard]] std::string remark(const Operator& op, const Point& point,
                                   const std::string& variant) const;

  [[nodiscard]] const std::vector<TunedTile>& all() const { return tiles_; }

 private:
  [[nodiscard]] const TunedTile* nearest(const Operator& op, const TunedTile& key) const;

  std::vector<TunedTile> tiles_;
};

/// The default path of the tuning file: katt/tuning.json in the user's configuration folder (XDG
/// base directory specification). Empty when the environment names neither XDG_CONFIG_HOME nor
/// HOME.
[[nodiscard]] std::optional<std::filesystem::path> usual_tuning_file();

/// True when an entry names `tile = auto` explicitly.
[[nodiscard]] bool asks_for_tuning(std::span<const SweepEntry> entries);

/// Makes entries that name no tile measure every tile of every variant with tiles. Throws
/// InputError for an operator without tiles.
void ask_for_all_tiles(std::span<SweepEntry> entries, const Registry& registry);

}  // namespace katt::bench
