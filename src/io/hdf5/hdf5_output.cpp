#include "io/hdf5/hdf5_output.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace katt::io::impl {

namespace {

/// Datasets up to this size live in their object header: one write, and no block of their own.
/// (The format's limit is 64 KiB for the whole header.)
constexpr std::size_t compact_bytes = 32768;

/// The name of a file in memory. HDF5 refuses the name of an existing file, so this is a name that
/// no file can have.
constexpr const char* in_memory = "/dev/null/in memory";

/// Bytes by which a file in memory grows at a time.
constexpr std::size_t growth_bytes = std::size_t{1} << 20;

/// The memory of a file. HDF5 must leave it to us when it closes the file: H5Fget_file_image()
/// clears a flag in its copy, and the checksum of the copy is then wrong.
void* allocate(std::size_t size, H5FD_file_image_op_t, void*) { return std::malloc(size); }
void* copy(void* to, const void* from, std::size_t size, H5FD_file_image_op_t, void*) {
  return std::memcpy(to, from, size);
}
void* grow(void* memory, std::size_t size, H5FD_file_image_op_t, void*) {
  return std::realloc(memory, size);
}
template <class Bytes>
herr_t release(void* memory, H5FD_file_image_op_t operation, void* bytes) {
  if (operation == H5FD_FILE_IMAGE_OP_FILE_CLOSE) static_cast<Bytes*>(bytes)->reset(memory);
  else std::free(memory);
  return 0;
}
void* share(void* bytes) { return bytes; }
herr_t forget(void*) { return 0; }

template <class Bytes>
Handle output_access(Bytes& bytes) {
  Handle access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(access.get(), growth_bytes, 0);  // nothing is on disk
  H5FD_file_image_callbacks_t callbacks{allocate, copy,   grow,  release<Bytes>,
                                        share,    forget, &bytes};
  H5Pset_file_image_callbacks(access.get(), &callbacks);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110);
  // closing the file closes all objects that an exception left open in it
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  return access;
}

/// Creation property list of an object that records no times: equal content gives equal bytes.
Handle creation_list(hid_t kind) {
  Handle list(H5Pcreate(kind));
  H5Pset_obj_track_times(list.get(), 0);
  return list;
}

Handle utf8_links() {
  Handle links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_char_encoding(links.get(), H5T_CSET_UTF8);
  H5Pset_create_intermediate_group(links.get(), 1);
  return links;
}

}  // namespace

hid_t require(hid_t result, const std::string& what) {
  if (result < 0) throw std::runtime_error("cannot " + what + ": " + last_error());
  return result;
}

MemoryFile::MemoryFile() : bytes_(std::make_unique<std::unique_ptr<void, Free>>()) {
  const Handle access = output_access(*bytes_);
  const Handle creation = creation_list(H5P_FILE_CREATE);
  file_ = Handle(require(H5Fcreate(in_memory, H5F_ACC_TRUNC, creation.get(), access.get()),
                         "create a file in memory"));
}

MemoryFile::MemoryFile(const std::filesystem::path& path)
    : bytes_(std::make_unique<std::unique_ptr<void, Free>>()) {
  std::ifstream file(path, std::ios::binary);
  std::string content(std::istreambuf_iterator<char>(file), {});
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  const Handle access = output_access(*bytes_);
  require(H5Pset_file_image(access.get(), content.data(), content.size()), "copy " + path.string());
  file_ = Handle(require(H5Fopen(in_memory, H5F_ACC_RDWR, access.get()), "open " + path.string()));
}

std::span<const std::byte> MemoryFile::close() {
  require(H5Fflush(file_.get(), H5F_SCOPE_LOCAL), "finish a file in memory");
  const ssize_t size = H5Fget_file_image(file_.get(), nullptr, 0);
  require(size, "measure a file in memory");
  require(H5Fclose(file_.release()), "close a file in memory");
  return {static_cast<const std::byte*>(bytes_->get()), static_cast<std::size_t>(size)};
}

Handle open_group(hid_t file, const std::string& path) {
  if (H5Lexists(file, path.c_str(), H5P_DEFAULT) > 0) {
    return Handle(require(H5Gopen2(file, path.c_str(), H5P_DEFAULT), "open group " + path));
  }
  const Handle links = utf8_links();
  const Handle creation = creation_list(H5P_GROUP_CREATE);
  return Handle(require(H5Gcreate2(file, path.c_str(), links.get(), creation.get(), H5P_DEFAULT),
                        "create group " + path));
}

void write_dataset(hid_t group, const std::string& name, hid_t type,
                   const std::vector<std::int64_t>& shape, const void* data) {
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  const Handle space(dims.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
  require(space.get(), "describe dataset " + name);
  const Handle links = utf8_links();
  const Handle creation = creation_list(H5P_DATASET_CREATE);
  const auto count = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
  if (count > 0 && count * H5Tget_size(type) <= compact_bytes) {
    H5Pset_layout(creation.get(), H5D_COMPACT);
  }
  const Handle dataset(require(
      H5Dcreate2(group, name.c_str(), type, space.get(), links.get(), creation.get(), H5P_DEFAULT),
      "create dataset " + name));
  if (count > 0) {
    require(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
            "write dataset " + name);
  }
}

void write_attribute(hid_t object, const std::string& name,
                     const std::variant<std::string, std::int64_t, double>& value) {
  if (H5Aexists(object, name.c_str()) > 0) {
    require(H5Adelete(object, name.c_str()), "replace attribute " + name);
  }
  Handle type;
  const void* data = nullptr;
  const char* text = nullptr;
  if (const auto* string = std::get_if<std::string>(&value)) {
    type = Handle(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    text = string->c_str();
    data = static_cast<const void*>(&text);
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    type = Handle(H5Tcopy(H5T_NATIVE_INT64));
    data = integer;
  } else {
    type = Handle(H5Tcopy(H5T_NATIVE_DOUBLE));
    data = &std::get<double>(value);
  }
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(
      require(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
              "create attribute " + name));
  require(H5Awrite(attribute.get(), type.get(), data), "write attribute " + name);
}

Handle text_type(std::size_t width) {
  Handle type(H5Tcopy(H5T_C_S1));
  require(H5Tset_size(type.get(), width),
          "make a text type of " + std::to_string(width) + " bytes");
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

void copy_text(const std::string& text, char* out, std::size_t width) {
  std::size_t length = std::min(text.size(), width);
  if (length < text.size()) {
    // bytes of the form 10xxxxxx continue a character
    const auto continues = [&text](std::size_t at) {
      return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
    };
    while (length > 0 && continues(length)) --length;
  }
  std::fill(std::copy_n(text.begin(), length, out), out + width, '\0');
}

}  // namespace katt::io::impl
