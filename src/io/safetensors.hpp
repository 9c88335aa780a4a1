#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"

/// The safetensors format (github.com/huggingface/safetensors): a little-endian 64-bit length, a
/// JSON header of that length that gives every tensor a dtype, a shape and a range of bytes, and
/// the bytes.
namespace katt::io {

/// Longest header that is accepted, as in the format's own reader.
inline constexpr std::size_t max_safetensors_header_bytes = 100'000'000;

/// One tensor of a header.
struct SafetensorsEntry {
  std::string dtype;  ///< the format's name: "F32", "F16", "BF16", "I64", …
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  ///< bytes, from the start of the file
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the header of a whole file in memory, treated as hostile. Throws InputError of one line,
/// "NAME: …", for: a header that is too long, cut off or not JSON of the expected form; a key given
/// twice; an unknown dtype; a shape whose size overflows; ranges that overlap, leave a hole, do not
/// fit their shape or do not end where the file ends.
[[nodiscard]] SafetensorsHeader parse_safetensors(const std::string& name,
                                                  std::span<const std::byte> file);

/// The tensors of one file, or of a sharded checkpoint, mapped into memory.
class Safetensors {
 public:
  /// Opens a file or, when it is missing, the shards that its index names (index_of()), in the
  /// order of transformers. A folder stands for `model.safetensors` in it. Throws InputError naming
  /// the file.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  /// Every tensor by name.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// Metadata of the (first) file.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  /// Throws InputError naming the file and the tensor when the tensor is missing, has another
  /// shape, or is not f32, f16 or bf16.
  void check(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// Reads a tensor of f32, f16 or bf16 as f32, row-major. Throws as check().
  void read(const std::string& name, const std::vector<std::int64_t>& shape,
            std::span<float> values) const;
  /// The same for a part: values.size() elements from element `first` on.
  void read(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t first,
            std::span<float> values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "model.safetensors.index.json" for "model.safetensors": the index of its shards.
[[nodiscard]] std::filesystem::path index_of(const std::filesystem::path& file);

/// A tensor to be written: f32 values, stored in the dtype.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  ///< row-major
};

/// Writes a file in one step (io/atomic_file.hpp), tensors in the given order. Throws InputError
/// when the place is not writable, std::invalid_argument for a shape that does not fit the values
/// or a name given twice.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

/// Writes a file in one step from values that come piece by piece, so that memory does not grow
/// with the file.
class SafetensorsWriter {
 public:
  /// Ignores `values` of the tensors. Throws as write_safetensors().
  SafetensorsWriter(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;

  /// Writes the next values, one tensor after the other, row-major. Throws std::invalid_argument
  /// when they go beyond the end of a tensor.
  void append(std::span<const float> values);
  /// Makes the new content the file, when all values have come. Throws std::runtime_error when the
  /// write failed.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes the index of shards in one step: the file beside it that holds each tensor, and the bytes
/// of all tensors.
void write_safetensors_index(const std::filesystem::path& path,
                             const std::map<std::string, std::string>& files,
                             std::int64_t total_bytes);

}  // namespace katt::io
