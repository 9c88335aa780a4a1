#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "tests/io/mutate.hpp"
#include "tests/io/refusal.hpp"

/// Code that the fuzz targets share. A target is one source with libFuzzer's functions
/// (llvm.org/docs/LibFuzzer.html); scripts/fuzz builds and runs it.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace katt::test::fuzz {

/// Ends the program; libFuzzer keeps the input.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "katt fuzz: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

/// True when a reader takes its input. The only other outcome is an InputError; any other exception
/// reaches libFuzzer. Text of a file must come in one clean line; typed text is cleaned when it is
/// printed.
enum class From { file, command_line };
template <class Read>
bool is_taken(Read&& read, From from = From::file) {
  try {
    read();
    return true;
  } catch (const InputError& error) {
    if (from == From::command_line) return false;
    const std::string complaint = complaint_about_line(error.what());
    require(complaint.empty(), "refused " + complaint + ": " + error.what());
  }
  return false;
}

/// Half of the changes are libFuzzer's, half know the format.
inline std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed,
                          Damage damage) {
  Dice dice(seed, size);
  if (size == 0 || dice.one_in(2)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  damage(text, std::string(text), dice);
  text.resize(std::min(text.size(), max_size));
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

/// A folder of this process in memory, for readers that take a path. It is removed at the end.
class Folder {
 public:
  Folder() : path_("/dev/shm/katt_fuzz_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::filesystem::path file(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace katt::test::fuzz

/// The mutator of a target whose format `damage` knows.
#define KATT_FUZZ_MUTATOR(damage)                                                       \
  extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,  \
                                                 std::size_t max_size, unsigned seed) { \
    return katt::test::fuzz::mutate(data, size, max_size, seed, damage);                \
  }
