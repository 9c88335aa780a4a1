#include "io/hdf5/hdf5_reader.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "core/error.hpp"
#include "io/printable.hpp"

namespace katt::io::impl {

namespace {

namespace fs = std::filesystem;

/// Longest text that is read as an attribute: that of a sweep file of the largest size.
constexpr std::size_t max_text_bytes = std::size_t{1} << 20;

/// Most attributes of an object that are read.
constexpr std::size_t max_attributes = 1000;

/// Deflate expands a byte to at most 1032 (RFC 1951: a length code of 258 bytes in 2 bits).
constexpr std::size_t max_expansion = 1032;

/// Elements are sent in blocks of about this size.
constexpr std::size_t block_bytes = std::size_t{1} << 24;

std::size_t physical_memory_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

herr_t refuse_external_link(const char*, const char*, const char*, const char*, unsigned*, hid_t,
                            void*) {
  return -1;
}

/// True when a program that uses HDF5 writes the file: it then holds a lock, and the content may be
/// incomplete.
bool is_open_elsewhere(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return is_locked;
}

Handle open_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const auto reject = [&path](const std::string& message) {
    throw InputError(path.string() + ": " + message);
  };
  if (!fs::exists(status)) reject("no such file, expected an HDF5 file");
  if (fs::is_directory(status)) reject("is a folder, expected an HDF5 file");
  // a pipe would block, a device has no end
  if (!fs::is_regular_file(status)) reject("is not a regular file, expected an HDF5 file");
  if (::access(path.c_str(), R_OK) != 0) {
    reject("cannot be read: " + std::generic_category().message(errno));
  }
  const auto reject_content = [&](const std::string& message) {
    reject(is_open_elsewhere(path)
               ? "another program has it open for writing, expected a file that "
                 "is closed"
               : message);
  };
  if (fs::file_size(path, error) == 0) reject_content("is empty, expected an HDF5 file");
  if (H5Fis_hdf5(path.c_str()) <= 0) reject_content("is not an HDF5 file");
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  if (!file.valid()) reject_content("is a damaged HDF5 file: " + printable(last_error()));
  return file;
}

/// A type in words, for messages: "float32", "uint8", "text", "a compound type" …
std::string type_text(hid_t type) {
  const std::string bits = std::to_string(8 * H5Tget_size(type));
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: return "float" + bits;
    case H5T_INTEGER: return (H5Tget_sign(type) == H5T_SGN_NONE ? "uint" : "int") + bits;
    case H5T_ENUM: return "an enumeration";
    case H5T_STRING: return "text";
    case H5T_COMPOUND: return "a compound type";
    case H5T_ARRAY: return "an array type";
    case H5T_VLEN: return "a variable-length type";
    case H5T_REFERENCE: return "references";
    case H5T_OPAQUE: return "opaque bytes";
    case H5T_BITFIELD: return "a bit field";
    default: return "an unknown type";
  }
}

ElementKind kind_of(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: return ElementKind::real;
    case H5T_INTEGER:
      return H5Tget_sign(type) == H5T_SGN_NONE ? ElementKind::unsigned_integer
                                               : ElementKind::integer;
    case H5T_ENUM: return ElementKind::integer;
    case H5T_COMPOUND: return ElementKind::table;
    default: return ElementKind::other;
  }
}

std::string member_name(hid_t type, unsigned member) {
  char* text = H5Tget_member_name(type, member);
  std::string name = text == nullptr ? "" : text;
  H5free_memory(text);
  return name;
}

std::vector<ColumnInfo> columns_of(hid_t type, const Handle& expected) {
  std::vector<ColumnInfo> columns;
  if (!expected.valid() || H5Tget_class(type) != H5T_COMPOUND) return columns;
  for (int i = 0; i < H5Tget_nmembers(type); ++i) {
    const auto member = static_cast<unsigned>(i);
    const Handle held(H5Tget_member_type(type, member));
    ColumnInfo column{.name = member_name(type, member), .type = type_text(held.get())};
    column.is_int64 = H5Tequal(held.get(), H5T_NATIVE_INT64) > 0;
    const int known = H5Tget_member_index(expected.get(), column.name.c_str());
    if (known >= 0) {
      const Handle wanted(H5Tget_member_type(expected.get(), static_cast<unsigned>(known)));
      column.is_expected = H5Tequal(held.get(), wanted.get()) > 0;
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

/// Rows of the first axis that are stored together.
hsize_t rows_of_a_chunk(const Handle& dataset) {
  const Handle creation(H5Dget_create_plist(dataset.get()));
  std::array<hsize_t, H5S_MAX_RANK> chunk{};
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED ||
      H5Pget_chunk(creation.get(), H5S_MAX_RANK, chunk.data()) < 1) {
    return 1;
  }
  return std::max<hsize_t>(chunk[0], 1);
}

/// Some rows of a dataset: those from `first` on along its first axis. A scalar has one.
class Selection {
 public:
  Selection(const Handle& dataset, const std::vector<std::int64_t>& extents, hsize_t first,
            hsize_t rows)
      : dataset_(dataset), rows_(rows), file_(H5Dget_space(dataset.get())) {
    if (extents.empty()) return;
    std::vector<hsize_t> start(extents.size(), 0);
    std::vector<hsize_t> count(extents.begin(), extents.end());
    start[0] = first;
    count[0] = rows;
    H5Sselect_hyperslab(file_.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    memory_ = Handle(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr));
  }

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] bool read(const Handle& type, void* data) const {
    return H5Dread(dataset_.get(), type.get(), memory_.valid() ? memory_.get() : H5S_ALL,
                   file_.get(), H5P_DEFAULT, data) >= 0;
  }

 private:
  const Handle& dataset_;
  hsize_t rows_;
  Handle file_, memory_;
};

bool is_compressed(const Handle& dataset) {
  const Handle creation(H5Dget_create_plist(dataset.get()));
  return H5Pget_nfilters(creation.get()) > 0;
}

std::optional<Scalar> read_number(hid_t attribute, hid_t type) {
  if (H5Tget_class(type) == H5T_FLOAT) {
    double value = 0;
    if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) return std::nullopt;
    return value;
  }
  std::int64_t value = 0;
  // HDF5 clips a value that does not fit, so this reads it in its own type and refuses it
  const bool is_unsigned = H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_NONE;
  if (H5Aread(attribute, is_unsigned ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, &value) < 0 ||
      (is_unsigned && value < 0)) {
    return std::nullopt;
  }
  return value;
}

std::optional<Scalar> read_text(hid_t attribute, hid_t type) {
  Handle memory(H5Tcopy(H5T_C_S1));
  H5Tset_cset(memory.get(), H5Tget_cset(type));
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory.get(), H5T_VARIABLE);
    char* text = nullptr;
    if (H5Aread(attribute, memory.get(), static_cast<void*>(&text)) < 0) return std::nullopt;
    std::string value = text == nullptr ? "" : text;
    H5free_memory(text);
    if (value.size() > max_text_bytes) return std::nullopt;
    return value;
  }
  const std::size_t bytes = H5Tget_size(type);
  if (bytes == 0 || bytes > max_text_bytes) return std::nullopt;
  std::string value(bytes + 1, '\0');
  H5Tset_size(memory.get(), bytes + 1);
  if (H5Aread(attribute, memory.get(), value.data()) < 0) return std::nullopt;
  value.resize(value.find('\0'));
  return value;
}

}  // namespace

std::string holds(const Scalar& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return "holds text \"" + printable(*text) + "\"";
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    return "holds " + std::to_string(*integer);
  }
  return "holds " + std::to_string(std::get<double>(value));
}

void NamedFile::reject(const std::string& message) const {
  throw InputError(path_.string() + ": " + message);
}

void NamedFile::reject_dataset(std::string_view name, const std::string& message) const {
  reject("dataset " + std::string(name) + ": " + message);
}

void NamedFile::reject_attribute(std::string_view name, const std::string& message) const {
  reject("attribute " + std::string(name) + ": " + message);
}

Hdf5Reader::Hdf5Reader(fs::path path) : NamedFile(std::move(path)) {
  silence_errors();
  file_ = open_file(this->path());
  access_ = Handle(H5Pcreate(H5P_LINK_ACCESS));
  H5Pset_elink_cb(access_.get(), refuse_external_link, nullptr);
}

bool Hdf5Reader::has(std::string_view name) const {
  return H5Lexists(file_.get(), std::string(name).c_str(), access_.get()) > 0;
}

bool Hdf5Reader::has_attribute(std::string_view name) const {
  return H5Aexists(file_.get(), std::string(name).c_str()) > 0;
}

std::optional<Scalar> Hdf5Reader::attribute(std::string_view name) const {
  if (!has_attribute(name)) return std::nullopt;
  const Handle attribute(H5Aopen(file_.get(), std::string(name).c_str(), H5P_DEFAULT));
  if (!attribute.valid()) reject_attribute(name, "is damaged: " + printable(last_error()));
  return read_attribute(attribute, name);
}

std::vector<std::string> Hdf5Reader::attribute_names(const Handle& object,
                                                     std::string_view name) const {
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* key, const H5A_info_t*, void* out) -> herr_t {
    auto& list = *static_cast<std::vector<std::string>*>(out);
    list.emplace_back(key);
    return list.size() > max_attributes ? -1 : 0;
  };
  if (H5Aiterate2(object.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names) < 0) {
    reject(std::string(name) + ": its attributes are damaged, or more than " +
           std::to_string(max_attributes));
  }
  return names;
}

RootNames Hdf5Reader::root_names() const {
  RootNames names;
  const auto collect = [](hid_t, const char* key, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(key);
    return 0;
  };
  if (H5Literate(file_.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names.links) < 0) {
    reject("its root is damaged: " + printable(last_error()));
  }
  names.attributes = attribute_names(file_, "/");
  return names;
}

ScalarMap Hdf5Reader::attributes_of(std::string_view name, const std::string& expected) const {
  const Handle object = open_object(name, expected);
  ScalarMap values;
  for (const std::string& key : attribute_names(object, name)) {
    const std::string shown = std::string(name) + "/" + printable(key);
    const Handle attribute(H5Aopen(object.get(), key.c_str(), H5P_DEFAULT));
    if (!attribute.valid()) reject_attribute(shown, "is damaged: " + printable(last_error()));
    values.emplace(key, read_attribute(attribute, shown));
  }
  return values;
}

Scalar Hdf5Reader::read_attribute(const Handle& attribute, std::string_view name) const {
  const Handle space(H5Aget_space(attribute.get()));
  const Handle type(H5Aget_type(attribute.get()));
  if (!space.valid() || !type.valid()) reject_attribute(name, "is damaged");
  // (1,) is how some writers say scalar
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (count != 1) {
    reject_attribute(name, "holds " + std::to_string(count) + " values, expected one");
  }
  std::optional<Scalar> value;
  switch (H5Tget_class(type.get())) {
    case H5T_FLOAT:
    case H5T_INTEGER:
    case H5T_ENUM: value = read_number(attribute.get(), type.get()); break;
    case H5T_STRING: value = read_text(attribute.get(), type.get()); break;
    default:
      reject_attribute(name,
                       "holds " + type_text(type.get()) + ", expected a number or a short text");
  }
  if (!value) {
    reject_attribute(name, "holds " + type_text(type.get()) + " that cannot be read, expected a " +
                               "number within int64 or float64, or a short text");
  }
  return *value;
}

void Hdf5Reader::check_link(const std::string& name) const {
  H5L_info_t info;
  if (H5Lget_info(file_.get(), name.c_str(), &info, access_.get()) < 0) {
    reject_dataset(name, "is damaged: " + printable(last_error()));
  }
  if (info.type != H5L_TYPE_HARD && info.type != H5L_TYPE_SOFT) {
    reject_dataset(name, "is a link to another file, expected a dataset in this one");
  }
}

void Hdf5Reader::check_storage(const Handle& dataset, std::string_view name) const {
  const Handle creation(H5Dget_create_plist(dataset.get()));
  if (!creation.valid()) reject_dataset(name, "is damaged: " + printable(last_error()));
  if (H5Pget_layout(creation.get()) == H5D_VIRTUAL || H5Pget_external_count(creation.get()) != 0) {
    reject_dataset(name, "keeps its data in other files, expected them in this one");
  }
  // any other filter would be a plugin, which HDF5 would load and run
  constexpr std::array known{H5Z_FILTER_DEFLATE, H5Z_FILTER_SHUFFLE, H5Z_FILTER_FLETCHER32};
  const int filters = H5Pget_nfilters(creation.get());
  for (int index = 0; index < filters; ++index) {
    unsigned flags = 0;
    std::size_t parameters = 0;
    const H5Z_filter_t filter = H5Pget_filter2(creation.get(), static_cast<unsigned>(index), &flags,
                                               &parameters, nullptr, 0, nullptr, nullptr);
    if (std::ranges::find(known, filter) == known.end()) {
      reject_dataset(name, "is compressed by HDF5 filter " + std::to_string(filter) +
                               ", expected no compression or gzip");
    }
  }
}

Handle Hdf5Reader::open_object(std::string_view name, const std::string& expected) const {
  const std::string key(name);
  if (!has(name)) reject_dataset(name, "is missing, expected " + expected);
  check_link(key);
  Handle object(H5Oopen(file_.get(), key.c_str(), access_.get()));
  if (!object.valid()) reject_dataset(name, "cannot be opened: " + printable(last_error()));
  return object;
}

Handle Hdf5Reader::open(std::string_view name, const std::string& expected) const {
  Handle dataset = open_object(name, expected);
  if (H5Iget_type(dataset.get()) != H5I_DATASET) {
    reject_dataset(name, "is a group or a type, expected a dataset of " + expected);
  }
  check_storage(dataset, name);
  return dataset;
}

std::vector<std::int64_t> Hdf5Reader::extents(const Handle& dataset, std::string_view name,
                                              const std::string& expected) const {
  const Handle space(H5Dget_space(dataset.get()));
  if (!space.valid()) reject_dataset(name, "is damaged: " + printable(last_error()));
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
    reject_dataset(name, "holds no data, expected " + expected);
  }
  std::array<hsize_t, H5S_MAX_RANK> dims{};
  const int rank = H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
  if (rank < 0) reject_dataset(name, "is damaged: " + printable(last_error()));
  std::vector<std::int64_t> shape;
  for (int axis = 0; axis < rank; ++axis) {
    const hsize_t extent = dims[static_cast<std::size_t>(axis)];
    if (extent > static_cast<hsize_t>(INT64_MAX)) {
      reject_dataset(name, "claims an extent of " + std::to_string(extent) + ", expected " +
                               expected + " within this machine's memory");
    }
    shape.push_back(static_cast<std::int64_t>(extent));
  }
  return shape;
}

DatasetInfo Hdf5Reader::describe(std::string_view name, const std::string& expected,
                                 const Handle& table) const {
  const Handle dataset = open(name, expected);
  const Handle type(H5Dget_type(dataset.get()));
  if (!type.valid()) reject_dataset(name, "is damaged: its type cannot be read");
  return {.shape = extents(dataset, name, expected),
          .kind = kind_of(type.get()),
          .type = type_text(type.get()),
          .columns = columns_of(type.get(), table)};
}

std::size_t Hdf5Reader::readable_count(std::string_view name, std::size_t memory_bytes) const {
  const Handle dataset = open(name, "data");
  const std::vector<std::int64_t> extents = this->extents(dataset, name, "data");
  const Handle type(H5Dget_type(dataset.get()));
  const std::size_t file_bytes = type.valid() ? H5Tget_size(type.get()) : 0;
  if (file_bytes == 0) reject_dataset(name, "is damaged: " + printable(last_error()));

  const std::size_t limit = physical_memory_bytes() / std::max(file_bytes, memory_bytes);
  std::size_t count = 1;
  for (const std::int64_t extent : extents) {
    if (extent == 0) return 0;
    if (static_cast<std::size_t>(extent) > limit / count) {
      reject_dataset(name, "claims shape " + shape_text(extents) + ", more than the " +
                               std::to_string(physical_memory_bytes()) +
                               " bytes of this machine's memory");
    }
    count *= static_cast<std::size_t>(extent);
  }

  // without this, a file of a few bytes could ask for all of the memory, filled with zeros
  const auto stored = static_cast<std::size_t>(H5Dget_storage_size(dataset.get()));
  const std::size_t claimed = count * file_bytes;
  if (stored < (is_compressed(dataset) ? claimed / max_expansion : claimed)) {
    reject_dataset(name, "stores " + std::to_string(stored) + " bytes, expected " +
                             std::to_string(claimed) + " for shape " + shape_text(extents));
  }
  return count;
}

void Hdf5Reader::read(std::string_view name, const Handle& memory_type, Reply& reply) const {
  const Handle dataset = open(name, "data");
  const std::vector<std::int64_t> extents = this->extents(dataset, name, "data");
  const auto length = static_cast<hsize_t>(extents.empty() ? 1 : extents[0]);
  std::size_t row_bytes = H5Tget_size(memory_type.get());
  for (std::size_t axis = 1; axis < extents.size(); ++axis) {
    row_bytes *= static_cast<std::size_t>(extents[axis]);
  }
  if (length == 0 || row_bytes == 0) return;
  // whole chunks, so that none is unpacked twice
  const hsize_t unit = rows_of_a_chunk(dataset);
  const hsize_t rows = (block_bytes / row_bytes / unit + 1) * unit;
  std::string block;
  for (hsize_t first = 0; first < length; first += rows) {
    const Selection part(dataset, extents, first, std::min(rows, length - first));
    block.resize(part.rows() * row_bytes);
    reply.expect_bytes(block.size());
    if (!part.read(memory_type, block.data())) {
      reject_dataset(name, "cannot be read: " + printable(last_error()));
    }
    reply.send(block);
  }
}

}  // namespace katt::io::impl
