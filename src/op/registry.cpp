#include "op/registry.hpp"

#include "core/text.hpp"
#include "io/printable.hpp"

namespace katt::bench {

void Registry::add(std::unique_ptr<Operator> op) {
  const std::string name = op->name();
  if (!operators_.emplace(name, std::move(op)).second) {
    throw InputError("operator " + name + ": the name is taken");
  }
}

const Operator& Registry::find(std::string_view name) const {
  const auto found = operators_.find(name);
  if (found != operators_.end()) return *found->second;
  std::vector<std::string> known;
  for (const auto& [known_name, op] : operators_) known.push_back(known_name);
  const std::string near = suggestion(name, known);
  throw InputError("operator " + io::impl::printable(name) + ": unknown; " +
                   (near.empty() ? "" : near + " ") + "expected " + join(known, ", "));
}

std::vector<const Operator*> Registry::all() const {
  std::vector<const Operator*> list;
  for (const auto& [name, op] : operators_) list.push_back(op.get());
  return list;
}

}  // namespace katt::bench
