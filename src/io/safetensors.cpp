#include "io/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/json_input.hpp"
#include "io/mapped_file.hpp"
#include "io/printable.hpp"
#include "tile/convert.hpp"

namespace katt::io {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_index_bytes = 100'000'000;
constexpr int index_depth = 8;
/// Elements converted at a time.
constexpr std::size_t chunk = 1 << 16;

/// Tensor bytes in a file may be unaligned, so they pass through an aligned buffer.
template <class T>
void widen(std::span<const std::byte> bytes, std::span<float> values) {
  std::vector<T> stored(std::min(chunk, values.size()));
  for (std::size_t at = 0; at < values.size(); at += chunk) {
    const std::size_t count = std::min(chunk, values.size() - at);
    std::memcpy(stored.data(), bytes.data() + at * sizeof(T), count * sizeof(T));
    convert(std::span<const T>(stored.data(), count), values.subspan(at, count));
  }
}

struct Shard {
  explicit Shard(const fs::path& file)
      : path(file),
        mapped(file, "a safetensors file"),
        header(parse_safetensors(file.string(), mapped.bytes())) {}

  fs::path path;
  impl::MappedFile mapped;
  SafetensorsHeader header;
};

/// `weight_map` of an index file: tensor name → file name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto fail = [&](const std::string& message) {
    throw InputError(path.string() + ": weight_map: " + message);
  };
  const nlohmann::json root = impl::parse_json(
      path.string(), impl::read_text(path, max_index_bytes, "an index of shards"), index_depth);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) {
    throw InputError(path.string() + ": expected a JSON object with a table weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // A plain name: an index must not lead outside its folder.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        std::any_of(file.begin(), file.end(),
                    [](unsigned char c) { return c < 0x20 || c == 0x7F; })) {
      fail("tensor " + impl::printable(tensor) + ": holds \"" + impl::printable(file) +
           "\", expected the name of a file beside the index");
    }
    files.emplace(tensor, file);
  }
  return files;
}

}  // namespace

struct Safetensors::Impl {
  fs::path path;
  std::map<std::string, std::unique_ptr<Shard>> shards;  ///< by file name
  std::map<std::string, const Shard*> tensors;           ///< by tensor name

  const Shard& add(const fs::path& file) {
    auto& shard = shards[file.filename().string()];
    shard = std::make_unique<Shard>(file);
    for (const auto& [tensor, entry] : shard->header.tensors) {
      if (!tensors.emplace(tensor, shard.get()).second) {
        throw InputError(file.string() + ": tensor " + impl::printable(tensor) +
                         ": is in another shard too, expected it once");
      }
    }
    return *shard;
  }

  void add_sharded(const fs::path& index) {
    const auto files = read_index(index);
    for (const auto& [tensor, file] : files) {
      if (!shards.contains(file)) add(index.parent_path() / file);
    }
    for (const auto& [tensor, shard] : tensors) {
      const auto named = files.find(tensor);
      if (named == files.end() || named->second != shard->path.filename().string()) {
        throw InputError(shard->path.string() + ": tensor " + impl::printable(tensor) +
                         ": the index does not name it here");
      }
    }
    for (const auto& [tensor, file] : files) {
      if (!tensors.contains(tensor)) {
        throw InputError(index.string() + ": weight_map: names the tensor " +
                         impl::printable(tensor) + ", which " + impl::printable(file) +
                         " does not hold");
      }
    }
  }
};

fs::path index_of(const fs::path& file) { return file.string() + ".index.json"; }

Safetensors::Safetensors(const fs::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? path / "model.safetensors" : path;
  if (!fs::exists(file, ignored) && fs::exists(index_of(file), ignored)) {
    impl_->add_sharded(index_of(file));
  } else {
    impl_->add(file);
  }
}

Safetensors::~Safetensors() = default;

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> result;
  for (const auto& [tensor, shard] : impl_->tensors) result.push_back(tensor);
  return result;
}

bool Safetensors::has(const std::string& name) const { return impl_->tensors.contains(name); }

const std::map<std::string, std::string>& Safetensors::metadata() const {
  static const std::map<std::string, std::string> none;
  return impl_->shards.empty() ? none : impl_->shards.begin()->second->header.metadata;
}

void Safetensors::check(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) {
    throw InputError(impl_->path.string() + ": tensor " + name + ": is missing, expected shape " +
                     impl::shape_text(shape));
  }
  const Shard& shard = *found->second;
  const SafetensorsEntry& entry = shard.header.tensors.at(name);
  const std::string where = shard.path.string() + ": tensor " + name + ": holds ";
  if (entry.shape != shape) {
    throw InputError(where + "shape " + impl::shape_text(entry.shape) + ", expected " +
                     impl::shape_text(shape));
  }
  if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
    throw InputError(where + entry.dtype + ", expected F32, F16 or BF16");
  }
}

void Safetensors::read(const std::string& name, const std::vector<std::int64_t>& shape,
                       std::span<float> values) const {
  if (values.size() != impl::element_count(shape)) {
    check(name, shape);
    throw std::invalid_argument("tensor " + name + ": the memory does not fit its shape");
  }
  read(name, shape, 0, values);
}

void Safetensors::read(const std::string& name, const std::vector<std::int64_t>& shape,
                       std::int64_t first, std::span<float> values) const {
  check(name, shape);
  const std::size_t count = impl::element_count(shape);
  const auto begin = static_cast<std::size_t>(first);
  if (begin > count || values.size() > count - begin) {
    throw std::invalid_argument("tensor " + name + ": the part is not within its shape");
  }
  const Shard& shard = *impl_->tensors.at(name);
  const SafetensorsEntry& entry = shard.header.tensors.at(name);
  const auto bytes = shard.mapped.bytes().subspan(entry.begin, entry.end - entry.begin);
  if (entry.dtype == "F32") {
    widen<float>(bytes.subspan(begin * sizeof(float)), values);
  } else if (entry.dtype == "F16") {
    widen<f16>(bytes.subspan(begin * sizeof(f16)), values);
  } else {
    widen<bf16>(bytes.subspan(begin * sizeof(bf16)), values);
  }
}

}  // namespace katt::io
