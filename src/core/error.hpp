#pragma once

#include <stdexcept>
#include <string>

namespace katt {

/// Bad usage or bad input. what() is one line that names the option, file or dataset, what it holds
/// and what was expected; the program prints it and exits with status 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace katt
