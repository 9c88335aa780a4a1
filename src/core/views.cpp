#include "core/views.hpp"

namespace katt::impl {

void refuse_view(Dtype held, Dtype wanted) {
  throw InputError("a view of " + std::string(name_of(wanted)) +
                   " was asked of a tensor that holds " + std::string(name_of(held)) +
                   ", expected its own dtype");
}

}  // namespace katt::impl
