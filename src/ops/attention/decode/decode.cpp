#include "ops/attention/decode/decode.hpp"

#include <string>

#include "core/error.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/decode/kernel.hpp"
#include "ops/attention/tile.hpp"

namespace katt::attention {

namespace impl {

namespace {

template <class Exec, class T>
using DecodeEngine = tile::RowEngine<Exec, T, decode_tile_kv<Exec>>;

}  // namespace

template <class Exec>
std::vector<Tile> decode_tiles() {
  // A host amortises the start of a split; a device needs many splits for its multiprocessors.
  const int usual = is_host_v<Exec> ? 1024 : 256;
  std::vector<Tile> tiles{{64, usual}};
  for (const int keys : {128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192}) {
    if (keys != usual) tiles.emplace_back(64, keys);
  }
  return tiles;
}

template <class Exec, class Args>
Status decode_supports(const Exec& exec, const Args& args, Tile tile) {
  const DecodePlan plan(args, tile);
  if (plan.rows() > tile.q) {
    return Status::skipped("decode takes at most " + std::to_string(tile.q) +
                           " query rows for each K/V head, seq_q " + std::to_string(plan.seq_q) +
                           " × heads / kv_heads " + std::to_string(plan.group()) + " are " +
                           std::to_string(plan.rows()));
  }
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) {
    if (decode_mma_takes(exec, args, tile)) return Status::ok();
  }
#endif
  return tile::teams_support(
      exec, plan.scratch_bytes<DecodeEngine<Exec, float>>(),
      std::to_string(plan.rows()) + " query rows at head_dim " + std::to_string(plan.head_dim));
}

template <class Exec, class Args>
std::size_t decode_workspace_bytes(const Exec& exec, const Args& args, Tile tile) {
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) {
    if (decode_mma_takes(exec, args, tile)) return decode_mma_workspace_bytes(exec, args, tile);
  }
#endif
  const DecodePlan plan(args, tile);
  return plan.parts_bytes() + plan.sums_bytes() +
         tile::team_workspace_bytes(exec, plan.scratch_bytes<DecodeEngine<Exec, float>>());
}

template <class Exec, class Args>
std::string decode_engine(const Exec& exec, const Args& args, Tile tile) {
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) return decode_mma_takes(exec, args, tile) ? "mma" : "";
#endif
  (void)exec, (void)args, (void)tile;
  return "";
}

#define KATT_INSTANTIATE_DECODE(Exec, Args)                                                \
  template Status decode_supports<Exec, Args>(const Exec&, const Args&, Tile);             \
  template std::size_t decode_workspace_bytes<Exec, Args>(const Exec&, const Args&, Tile); \
  template std::string decode_engine<Exec, Args>(const Exec&, const Args&, Tile);          \
  template void run_decode<Exec, Args>(const Exec&, const Args&, const NoRule&, Tile, Workspace);

#define KATT_INSTANTIATE_DECODE_TILES(Exec) template std::vector<Tile> decode_tiles<Exec>();

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_DECODE_TILES)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_DECODE, ForwardArgs)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_DECODE, PagedArgs)

}  // namespace impl

template <class Exec>
VariantTable<Exec, PagedArgs>& paged_variants() {
  static VariantTable<Exec, PagedArgs> table{impl::decode_variant<Exec, PagedArgs>()};
  return table;
}

void check(const PagedArgs& args) {
  impl::check_heads(args);
  const std::array<std::int64_t, 4> pages{args.k_pages.extent[0], args.kv_heads(), args.page_size(),
                                          args.head_dim()};
  check_tensor<4>("attention", "k_pages", args.k_pages, args.q.dtype, pages);
  check_tensor<4>("attention", "v_pages", args.v_pages, args.q.dtype, pages);
  impl::check_mask(args);
  impl::check_output(args);
  const auto require = [](bool holds, const char* message) {
    if (!holds) throw InputError(std::string("attention: ") + message);
  };
  require(args.page_size() > 0, "k_pages: holds page_size 0, expected a positive number");
  require(args.pages_per_sequence >= 0, "pages_per_sequence: is negative, expected 0 or more");
  require(args.seq_kv() <= std::int64_t{0xFFFFFFFF} - args.page_size(),
          "pages_per_sequence: pages hold 2^32 keys or more, expected fewer");
  require(args.block_table != nullptr || args.batch() * args.pages_per_sequence == 0,
          "block_table: is missing, expected (batch, pages_per_sequence) page numbers");
  require(args.mask.kv_len != nullptr,
          "kv_len: is missing, expected the length of every sequence in the paged cache");
}

template <class Exec>
std::size_t workspace_bytes(const Exec& exec, const PagedArgs& args, const Config& config) {
  check(args);
  return paged_variants<Exec>().workspace_bytes(exec, args, config);
}

template <class Exec>
Status decode(const Exec& exec, const PagedArgs& args, const Config& config, Workspace workspace) {
  check(args);
  return paged_variants<Exec>().run(exec, args, config, workspace);
}

#define KATT_INSTANTIATE_PAGED(Exec)                                                        \
  template VariantTable<Exec, PagedArgs>& paged_variants<Exec>();                           \
  template std::size_t workspace_bytes<Exec>(const Exec&, const PagedArgs&, const Config&); \
  template Status decode<Exec>(const Exec&, const PagedArgs&, const Config&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PAGED)

}  // namespace katt::attention
