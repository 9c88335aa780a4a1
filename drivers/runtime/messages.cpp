#include "drivers/runtime/messages.hpp"

#include "io/printable.hpp"
#include "ranks/communicator.hpp"

namespace katt::impl {
namespace {

Volume volume_now = Volume::usual;

}  // namespace

void set_volume(Volume volume) { volume_now = volume; }

std::FILE* messages() {
  return volume_now == Volume::quiet || ranks::world().rank() > 0 ? nullptr : stderr;
}

bool is_verbose() { return volume_now == Volume::verbose; }

void tell(const std::string& line) {
  std::FILE* const out = messages();
  if (out != nullptr && !line.empty()) {
    std::fprintf(out, "%s\n", io::impl::escaped(line).c_str());
  }
}

void tell_note(const std::string& line) {
  if (!line.empty()) tell("katt: " + line);
}

void tell_more(const std::string& line) {
  if (is_verbose()) tell(line);
}

}  // namespace katt::impl
