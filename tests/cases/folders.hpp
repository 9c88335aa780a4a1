#pragma once

#include <filesystem>
#include <vector>

namespace katt::test {

/// The folders of operator cases and checkpoints with expected results: that of the tree, and one
/// beside the tree if there is one.
inline std::vector<std::filesystem::path> case_folders() {
  std::filesystem::path root = KATT_SOURCE_DIR;
  // On another machine than that of the build, start a program in the root of a tree.
  if (!std::filesystem::exists(root / "tests/cases")) root = ".";
  std::vector folders{root / "tests/cases"};
  const auto beside = root / "../shared/cases";
  if (std::filesystem::exists(beside)) folders.push_back(beside);
  return folders;
}

}  // namespace katt::test
