#include "drivers/runtime/claim.hpp"

#include "ranks/communicator.hpp"
#include "sweep/sweep_ranks.hpp"

namespace katt::impl {

io::Outputs claim_outputs(const std::vector<io::NamedPath>& outputs,
                          const std::vector<io::NamedPath>& inputs, bool overwrite) {
  io::Outputs claimed;
  const ranks::Communicator ranks = ranks::world();
  bench::together(ranks, [&] {
    if (ranks.rank() != 0) return;
    io::check_distinct(outputs, inputs);
    for (const io::NamedPath& output : outputs) claimed.claim(output, overwrite);
  });
  return claimed;
}

}  // namespace katt::impl
