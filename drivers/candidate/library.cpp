#include "drivers/candidate/library.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <stdexcept>

namespace katt::candidate {
namespace {

using Json = nlohmann::json;

struct ElementType {
  std::int32_t dtype;
  std::size_t bytes;
};

ElementType element_type(const std::string& name) {
  static const std::map<std::string, ElementType> types{{"f32", {KATT_F32, 4}},
                                                        {"f16", {KATT_F16, 2}},
                                                        {"bf16", {KATT_BF16, 2}},
                                                        {"i64", {KATT_I64, 8}},
                                                        {"u8", {KATT_U8, 1}}};
  const auto found = types.find(name);
  if (found == types.end()) throw std::runtime_error("unknown element type " + name);
  return found->second;
}

/// Where the linker puts a name, as a function.
template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

std::byte* map(int file, std::size_t bytes, int access) {
  if (bytes == 0) return nullptr;
  void* const mapped = mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("the memory of the tensors cannot be mapped");
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Library::Library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto* const version =
      static_cast<const std::uint32_t*>(dlsym(library, "katt_candidate_version"));
  if (version == nullptr) {
    throw std::runtime_error(
        "has no katt_candidate_version, expected a library that includes "
        "katt/candidate.h");
  }
  if (*version != KATT_CANDIDATE_VERSION) {
    throw std::runtime_error("is compiled for version " + std::to_string(*version) +
                             " of katt/candidate.h, expected " +
                             std::to_string(KATT_CANDIDATE_VERSION));
  }
  forward = find<Run>(library, "katt_candidate_forward");
  backward = find<Run>(library, "katt_candidate_backward");
  workspace = find<size_t (*)(const katt_problem*)>(library, "katt_candidate_workspace");
  supports = find<const char* (*)(const katt_problem*)>(library, "katt_candidate_supports");
  if (forward == nullptr && backward == nullptr) {
    throw std::runtime_error("defines neither katt_candidate_forward nor katt_candidate_backward");
  }
  if (const auto tell = find<const char* (*)()>(library, "katt_candidate_about")) {
    const char* const text = tell();
    about = text != nullptr ? text : "";
    constexpr std::size_t longest = 200;
    about.resize(std::min({about.find('\n'), about.size(), longest}));
  }
}

Problem::Problem(const Json& request, int input_file, int output_file) {
  inputs_.bytes = request.at("bytes");
  outputs_.bytes = request.at("output_bytes");
  inputs_.data = map(input_file, inputs_.bytes, PROT_READ);
  outputs_.data = map(output_file, outputs_.bytes, PROT_READ | PROT_WRITE);
  add(request.at("inputs"), inputs_, input_tensors_, input_shapes_);
  add(request.at("outputs"), outputs_, output_tensors_, output_shapes_);
  add_values(request.at("axes"));
  add_values(request.at("parameters"));
  problem_ = {.version = KATT_CANDIDATE_VERSION,
              .threads = std::max(1, request.at("threads").get<int>()),
              .op = keep(request.at("op")),
              .pass = keep(request.at("pass")),
              .dtype = element_type(request.at("dtype")).dtype,
              .num_inputs = static_cast<std::int32_t>(input_tensors_.size()),
              .num_outputs = static_cast<std::int32_t>(output_tensors_.size()),
              .num_values = static_cast<std::int32_t>(values_.size()),
              .inputs = input_tensors_.data(),
              .outputs = output_tensors_.data(),
              .values = values_.data(),
              .workspace = nullptr,
              .workspace_bytes = 0};
}

Problem::~Problem() {
  for (const Mapping& mapping : {inputs_, outputs_}) {
    if (mapping.data != nullptr) munmap(mapping.data, mapping.bytes);
  }
  std::free(workspace_);
}

void Problem::add(const Json& list, const Mapping& memory, std::vector<katt_tensor>& tensors,
                  std::vector<katt_tensor>& shapes) {
  for (const Json& spec : list) {
    const ElementType type = element_type(spec.at("dtype"));
    const auto shape = spec.at("shape").get<std::vector<std::int64_t>>();
    const auto offset = spec.at("offset").get<std::size_t>();
    if (shape.size() > KATT_MAX_RANK) throw std::runtime_error("a tensor has too many axes");
    katt_tensor tensor{.name = keep(spec.at("name")),
                       .data = nullptr,
                       .dtype = type.dtype,
                       .rank = static_cast<std::int32_t>(shape.size()),
                       .shape = {},
                       .strides = {}};
    std::int64_t count = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      tensor.shape[axis] = shape[axis];
      tensor.strides[axis] = count;
      count *= shape[axis];
    }
    if (offset + static_cast<std::size_t>(count) * type.bytes > memory.bytes) {
      throw std::runtime_error(std::string(tensor.name) + " lies outside of the shared memory");
    }
    shapes.push_back(tensor);
    tensor.data = memory.data + offset;
    tensors.push_back(tensor);
  }
}

void Problem::add_values(const Json& values) {
  for (const auto& [name, value] : values.items()) {
    const bool is_text = value.is_string();
    values_.push_back(
        {.name = keep(name),
         .number = is_text ? std::numeric_limits<double>::quiet_NaN() : value.get<double>(),
         .text = is_text ? keep(value.get<std::string>()) : nullptr});
  }
}

katt_problem Problem::without_memory() {
  katt_problem problem = problem_;
  problem.inputs = input_shapes_.data();
  problem.outputs = output_shapes_.data();
  return problem;
}

const katt_problem& Problem::with_memory(std::size_t workspace_bytes) {
  constexpr std::size_t boundary = 64;
  if (workspace_bytes > 0) {
    const std::size_t rounded = (workspace_bytes + boundary - 1) / boundary * boundary;
    if (rounded >= workspace_bytes) workspace_ = std::aligned_alloc(boundary, rounded);
    if (workspace_ == nullptr) {
      throw std::runtime_error("out of memory: it asks for " + std::to_string(workspace_bytes) +
                               " bytes of workspace");
    }
  }
  problem_.workspace = workspace_;
  problem_.workspace_bytes = workspace_bytes;
  return problem_;
}

}  // namespace katt::candidate
