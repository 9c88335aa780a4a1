#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "ranks/communicator.hpp"

namespace katt::test {

/// A folder that all ranks see, not made yet; removed when all have done with it. All ranks make
/// one.
class SharedFolder {
 public:
  SharedFolder() = default;
  ~SharedFolder() {
    ranks::world().barrier();
    std::error_code ignored;
    if (ranks::world().rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Files whose names hold a text.
  [[nodiscard]] int count(const std::string& text) const {
    return static_cast<int>(
        std::ranges::count_if(std::filesystem::directory_iterator(path_), [&](const auto& entry) {
          return entry.path().filename().string().find(text) != std::string::npos;
        }));
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() /
      ("katt_ranks_" + ranks::world().broadcast_text(std::to_string(getpid()), 0));
};

}  // namespace katt::test
