#pragma once

#include <cstdio>
#include <string>

/// Messages of the program: notes, warnings and progress, on stderr. Results go to stdout,
/// whatever the volume is. Say nothing before the input is checked: a refusal is the only line.
namespace katt::impl {

/// --quiet: errors alone. --verbose: also what was resolved, and every variant that ran.
enum class Volume { quiet, usual, verbose };

void set_volume(Volume volume);

/// The stream of messages; null with --quiet, and on ranks other than the first.
[[nodiscard]] std::FILE* messages();
[[nodiscard]] bool is_verbose();

/// Says one line, made fit for a terminal. Nothing where it is empty.
void tell(const std::string& line);
/// A remark on a run that goes on: "katt: " and the line.
void tell_note(const std::string& line);
/// Says one line with --verbose alone.
void tell_more(const std::string& line);

}  // namespace katt::impl
