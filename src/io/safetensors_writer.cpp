#include <algorithm>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "io/atomic_file.hpp"
#include "io/printable.hpp"
#include "io/safetensors.hpp"
#include "tile/convert.hpp"

namespace katt::io {

namespace {

namespace fs = std::filesystem;

/// Elements converted at a time.
constexpr std::size_t written_at_once = 1 << 16;

const char* name_in_file(Dtype dtype) {
  return dtype == Dtype::f32 ? "F32" : dtype == Dtype::f16 ? "F16" : "BF16";
}

template <class T>
void write_narrow(const AtomicFile& out, std::span<const float> values) {
  std::vector<T> stored(std::min(written_at_once, values.size()));
  for (std::size_t at = 0; at < values.size(); at += written_at_once) {
    const std::size_t count = std::min(written_at_once, values.size() - at);
    convert(values.subspan(at, count), std::span<T>(stored.data(), count));
    out.write(std::as_bytes(std::span(stored.data(), count)));
  }
}

/// The length, and the header that gives the tensors their places.
std::string head_of(std::span<const SafetensorsTensor> tensors,
                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (header.contains(tensor.name)) {
      throw std::invalid_argument("tensor " + tensor.name + ": its name is taken");
    }
    const std::size_t bytes = size_of(tensor.dtype) * impl::element_count(tensor.shape);
    header[tensor.name] = {{"dtype", name_in_file(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

struct SafetensorsWriter::Impl {
  struct Rest {
    Dtype dtype;
    std::size_t count;
  };

  Impl(const fs::path& file, std::span<const SafetensorsTensor> tensors,
       const std::map<std::string, std::string>& metadata)
      : path(file), target(file) {
    const std::string head = head_of(tensors, metadata);
    std::uint64_t bytes = head.size();
    for (const SafetensorsTensor& tensor : tensors) {
      rest.push_back({tensor.dtype, impl::element_count(tensor.shape)});
      bytes += rest.back().count * size_of(tensor.dtype);
    }
    target.reserve(bytes);
    target.write(head);
    skip_written();
  }

  void skip_written() {
    while (next < rest.size() && rest[next].count == 0) ++next;
  }

  fs::path path;
  AtomicFile target;
  std::vector<Rest> rest;  ///< elements of each tensor that are still missing
  std::size_t next = 0;
};

SafetensorsWriter::SafetensorsWriter(const fs::path& path,
                                     std::span<const SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : impl_(std::make_unique<Impl>(path, tensors, metadata)) {}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept = default;

void SafetensorsWriter::append(std::span<const float> values) {
  if (values.empty()) return;
  if (impl_->next == impl_->rest.size() || values.size() > impl_->rest[impl_->next].count) {
    throw std::invalid_argument(impl_->path.string() + ": values beyond the end of a tensor");
  }
  Impl::Rest& rest = impl_->rest[impl_->next];
  switch (rest.dtype) {
    case Dtype::f32: write_narrow<float>(impl_->target, values); break;
    case Dtype::f16: write_narrow<f16>(impl_->target, values); break;
    case Dtype::bf16: write_narrow<bf16>(impl_->target, values); break;
  }
  rest.count -= values.size();
  impl_->skip_written();
}

void SafetensorsWriter::commit() {
  if (impl_->next != impl_->rest.size()) {
    throw std::invalid_argument(impl_->path.string() + ": values are missing");
  }
  impl_->target.commit();
}

void write_safetensors(const fs::path& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(path, tensors, metadata);
  for (const SafetensorsTensor& tensor : tensors) writer.append(tensor.values);
  writer.commit();
}

void write_safetensors_index(const fs::path& path, const std::map<std::string, std::string>& files,
                             std::int64_t total_bytes) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = files;
  write_file(path, index.dump(2) + "\n");
}

}  // namespace katt::io
