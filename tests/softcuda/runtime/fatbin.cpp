#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/softcuda/runtime/runtime.hpp"

// Declared here, so that the run-time package of zstd is enough.
extern "C" std::size_t ZSTD_decompress(void* to, std::size_t capacity, const void* from,
                                       std::size_t bytes);
extern "C" unsigned ZSTD_isError(std::size_t code);

// Extracts PTX, and the counts of registers, from the fat binary that nvcc puts into a program.

namespace softcuda {
namespace {

struct Wrapper {
  std::uint32_t magic, version;
  const unsigned char* data;
  void* more;
};

template <class T>
T at(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::string lz4_block(const unsigned char* in, std::size_t bytes, std::size_t expected) {
  std::string out;
  out.reserve(expected);
  const unsigned char* const end = in + bytes;
  const auto length = [&](std::size_t n) {
    if (n == 15) {
      unsigned char more = 255;
      while (more == 255 && in < end) n += more = *in++;
    }
    return n;
  };
  while (in < end) {
    const unsigned token = *in++;
    const std::size_t literals = length(token >> 4);
    if (literals > static_cast<std::size_t>(end - in))
      throw std::runtime_error("fatbin: LZ4 data is cut off");
    out.append(reinterpret_cast<const char*>(in), literals);
    in += literals;
    if (end - in < 2) break;
    const std::size_t distance = in[0] | in[1] << 8;
    in += 2;
    const std::size_t match = length(token & 15) + 4;
    if (distance == 0 || distance > out.size())
      throw std::runtime_error("fatbin: bad LZ4 distance");
    for (std::size_t i = 0; i < match; ++i) out.push_back(out[out.size() - distance]);
  }
  return out;
}

/// An entry of the fat binary: the PTX or the machine code of one architecture.
struct Entry {
  static constexpr int ptx = 1, elf = 2;
  int kind;
  unsigned architecture;
  std::uint64_t flags, compressed, expanded, payload;
  const unsigned char* data;
};

std::string contents(const Entry& e) {
  constexpr std::uint64_t lz4 = 0x2000, zstd = 0x8000;
  if (e.flags & zstd) {
    std::string out(e.expanded, '\0');
    const std::size_t size = ZSTD_decompress(out.data(), out.size(), e.data, e.compressed);
    if (ZSTD_isError(size)) throw std::runtime_error("fatbin: zstd cannot expand an entry");
    out.resize(size);
    return out;
  }
  if (e.flags & lz4) return lz4_block(e.data, e.compressed, e.expanded);
  return {reinterpret_cast<const char*>(e.data), e.payload};
}

std::vector<Entry> entries_of(const void* pointer) {
  Wrapper wrapper;
  std::memcpy(&wrapper, pointer, sizeof wrapper);
  if (wrapper.magic != 0x466243b1) {
    throw std::runtime_error("fatbin: the wrapper's magic number is wrong");
  }
  const unsigned char* p = wrapper.data;
  if (at<std::uint32_t>(p) != 0xBA55ED50) {
    throw std::runtime_error("fatbin: the header's magic number is wrong");
  }
  const std::size_t header = at<std::uint16_t>(p + 6);
  const unsigned char* const end = p + header + at<std::uint64_t>(p + 8);
  std::vector<Entry> entries;
  for (p += header; p + 64 <= end;) {
    const unsigned char* const data = p + at<std::uint32_t>(p + 4);
    entries.push_back({at<std::uint16_t>(p), at<std::uint32_t>(p + 28), at<std::uint64_t>(p + 40),
                       at<std::uint32_t>(p + 16), at<std::uint64_t>(p + 56),
                       at<std::uint64_t>(p + 8), data});
    p = data + entries.back().payload;
  }
  return entries;
}

/// The sections of an ELF file in memory.
class Elf {
 public:
  explicit Elf(const std::string& file)
      : base_(reinterpret_cast<const unsigned char*>(file.data())),
        header_(at<Elf64_Ehdr>(base_)) {}
  static bool is_elf(const std::string& file) {
    return file.size() >= sizeof(Elf64_Ehdr) && std::memcmp(file.data(), ELFMAG, SELFMAG) == 0;
  }
  std::size_t count() const { return header_.e_shnum; }
  Elf64_Shdr section(std::size_t i) const {
    return at<Elf64_Shdr>(base_ + header_.e_shoff + i * header_.e_shentsize);
  }
  const unsigned char* data(const Elf64_Shdr& s) const { return base_ + s.sh_offset; }
  const char* name(const Elf64_Shdr& s) const {
    return reinterpret_cast<const char*>(data(section(header_.e_shstrndx)) + s.sh_name);
  }

 private:
  const unsigned char* base_;
  Elf64_Ehdr header_;
};

void add_registers(const Elf& elf, std::map<std::string, int>& registers) {
  Elf64_Shdr info{}, symbols{};
  for (std::size_t i = 0; i < elf.count(); ++i) {
    const Elf64_Shdr section = elf.section(i);
    if (section.sh_type == SHT_SYMTAB) symbols = section;
    if (std::strcmp(elf.name(section), ".nv.info") == 0) info = section;
  }
  const unsigned char* const strings = elf.data(elf.section(symbols.sh_link));
  // Attributes: format, identifier, bytes, then symbol and value.
  constexpr unsigned char sized = 4, register_count = 0x2F;
  for (std::size_t i = 0; i + 4 <= info.sh_size;) {
    const unsigned char* const attribute = elf.data(info) + i;
    const std::size_t bytes = attribute[0] == sized ? at<std::uint16_t>(attribute + 2) : 0;
    if (bytes == 8 && attribute[1] == register_count) {
      const std::size_t which = at<std::uint32_t>(attribute + 4);
      const auto symbol = at<Elf64_Sym>(elf.data(symbols) + which * sizeof(Elf64_Sym));
      registers[reinterpret_cast<const char*>(strings + symbol.st_name)] = at<int>(attribute + 8);
    }
    i += 4 + bytes;
  }
}

}  // namespace

std::string extract_ptx(const void* wrapper) {
  const std::vector<Entry> entries = entries_of(wrapper);
  const Entry* best = nullptr;
  for (const Entry& e : entries) {
    if (e.kind != Entry::ptx || e.architecture > 90) continue;
    if (!best || e.architecture >= best->architecture) best = &e;
  }
  if (!best) throw std::runtime_error("fatbin: no PTX for compute capability 9.0 or below");
  std::string text = contents(*best);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

std::map<std::string, int> extract_registers(const void* wrapper) {
  std::map<std::string, int> registers;
  for (const Entry& e : entries_of(wrapper)) {
    if (e.kind != Entry::elf || e.architecture != 90) continue;
    const std::string file = contents(e);
    if (Elf::is_elf(file)) add_registers(Elf(file), registers);
  }
  return registers;
}

}  // namespace softcuda
