#include "drivers/claim.hpp"

#include "bench/sweep_ranks.hpp"
#include "dist/communicator.hpp"

namespace katt::impl {

io::Outputs claim_outputs(const std::vector<io::NamedPath>& outputs,
                          const std::vector<io::NamedPath>& inputs, bool overwrite) {
  io::Outputs claimed;
  const dist::Communicator ranks = dist::world();
  bench::together(ranks, [&] {
    if (ranks.rank() != 0) return;
    io::check_distinct(outputs, inputs);
    for (const io::NamedPath& output : outputs) claimed.claim(output, overwrite);
  });
  return claimed;
}

}  // namespace katt::impl
