#pragma once

#include <filesystem>
#include <string>

/// Score rules of Python for sweeps: a file holds the programs of a rule (python/katt/_rules/file.py).
namespace katt::attention {

/// Reads a rule and adds it to what sweeps accept for the axis score_rule; returns its name. Sweeps
/// run it as a ProgramRule, on the host alone; their reference runs its score in float64, score by
/// score. Throws InputError that names the file, or the rule when its name is taken.
///
/// A file is a safetensors file. Metadata: `name`, and for other programs `values`: the program of
/// the score as JSON. Tensors: for the programs `score` and `slope` (ProgramRule::Programs), each the
/// int32 parts of a Program's compact form, "score.code", "score.indices", "score.constants",
/// "score.results", "score.registers"; "bounded.score" and "bounded.slope", forms that need fewer
/// instructions, for extents up to the int32 "bounded": batch, heads, queries, keys; where the f32
/// "softcap" is not 0, "capped.score", "bounded.capped.score" and so on (ProgramRule::Capped); and
/// what all capture, "captured.0", …: f32, int32 or bool.
std::string add_rule_file(const std::filesystem::path& path);

/// The absolute path of the file that a rule was read from; empty for a rule in C++.
[[nodiscard]] std::filesystem::path rule_file_of(const std::string& rule);

}  // namespace katt::attention
