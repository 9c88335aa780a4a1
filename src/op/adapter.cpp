#include "op/adapter.hpp"

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/hdf5/case_file.hpp"
#include "machine/machine.hpp"

namespace katt::bench {

void run_to_end(const std::string& op, DecidedCall& call, Backend backend) {
  const std::string variant = op + ": variant " + call.config().variant;
  if (!call.status().is_ok()) throw InputError(variant + ": " + call.status().reason());
  const std::size_t needed = call.workspace_bytes();
  if (const std::size_t available = available_memory(backend); needed > available) {
    throw InputError(variant + " needs " + human_bytes(static_cast<double>(needed)) +
                     " of workspace, " + human_bytes(static_cast<double>(available)) +
                     " are available");
  }
  const Buffer workspace("katt::" + op + "::workspace", backend, needed);
  call.launch(workspace.workspace());
  call.fence();
}

void record_variant(io::TensorFile& out, const Config& config,
                    std::span<const std::string> parameters, bool backward) {
  const std::string prefix = backward ? "backward_" : "";
  out.set_attribute(prefix + "variant", config.variant);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    out.set_attribute(prefix + parameters[i], std::int64_t{config.setting.at(i)});
  }
}

}  // namespace katt::bench
