#include "ops/attention/bench/rule_file.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/mapped_file.hpp"
#include "io/printable.hpp"
#include "io/safetensors.hpp"
#include "op/registry.hpp"
#include "ops/attention/bench/exact_program.hpp"
#include "ops/attention/rules/program_variants.hpp"
#include "ops/attention/rules/score_rules.hpp"

namespace katt::attention {

namespace {

/// A rule of a file: its programs, for kernels and for the reference, and what both capture.
struct FileRule {
  std::vector<std::vector<std::byte>> captured;
  ProgramParts score_parts;
  struct Pair {
    std::unique_ptr<Program> score{}, slope{};

    [[nodiscard]] ProgramRule::Programs programs() const { return {score.get(), slope.get()}; }
  };
  struct Form {
    Pair plain, capped;
  };
  Form any, bounded;
  float softcap = 0.0F;  ///< ProgramRule::Capped
  RuleExtents bounds;    ///< of those that `bounded` is for

  [[nodiscard]] ProgramRule rule(const RuleExtents& of) const {
    const bool fits = of.batch <= bounds.batch && of.heads <= bounds.heads &&
                      of.seq_q <= bounds.seq_q && of.seq_kv <= bounds.seq_kv;
    const Form& form = fits ? bounded : any;
    const ProgramRule::Programs plain = form.plain.programs(), capped = form.capped.programs();
    return {.plain = plain, .masked = plain, .capped = {softcap, capped, capped}};
  }
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : name_(io::impl::printable(path.string())),
        file_(path, "a score rule"),
        header_(io::parse_safetensors(name_, file_.bytes())) {}

  [[nodiscard]] std::string rule_name() const {
    const auto found = header_.metadata.find("name");
    if (found == header_.metadata.end() || found->second.empty()) fail("expected metadata `name`");
    return io::impl::printable(found->second);
  }

  [[nodiscard]] std::shared_ptr<const FileRule> read() const {
    auto made = std::make_shared<FileRule>();
    std::vector<Captured> tensors;
    for (int n = 0; header_.tensors.contains("captured." + std::to_string(n)); ++n) {
      tensors.push_back(captured("captured." + std::to_string(n), *made));
    }
    try {
      made->score_parts = parts("score", tensors);
      made->softcap = softcap();
      made->any = form("", tensors, made->softcap > 0.0F);
      made->bounded = form("bounded.", tensors, made->softcap > 0.0F);
    } catch (const InputError& error) {
      fail(error.what());
    }
    const std::vector<std::int32_t> bounds = words("bounded");
    if (bounds.size() != 4) {
      fail("bounded: holds " + std::to_string(bounds.size()) + " numbers, expected 4");
    }
    made->bounds = {bounds[0], bounds[1], bounds[2], bounds[3]};
    return made;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(name_ + ": " + what); }

  [[nodiscard]] const io::SafetensorsEntry& entry(const std::string& tensor) const {
    const auto found = header_.tensors.find(tensor);
    if (found == header_.tensors.end()) fail("expected a tensor " + tensor);
    return found->second;
  }
  [[nodiscard]] std::span<const std::byte> bytes(const io::SafetensorsEntry& of) const {
    std::size_t all = 0;
    for (const auto& [name, each] : header_.tensors) all = std::max(all, each.end);
    return file_.bytes().subspan(file_.bytes().size() - all + of.begin, of.end - of.begin);
  }

  [[nodiscard]] Captured captured(const std::string& tensor, FileRule& into) const {
    const io::SafetensorsEntry& from = entry(tensor);
    Captured made{.type = from.dtype == "F32"   ? Type::real
                          : from.dtype == "I32" ? Type::index
                                                : Type::truth,
                  .extent = from.shape};
    if (made.type == Type::truth && from.dtype != "BOOL") {
      fail(tensor + ": holds " + from.dtype + ", expected F32, I32 or BOOL");
    }
    made.stride.assign(made.extent.size(), 1);
    for (std::size_t axis = made.extent.size(); axis-- > 1;) {
      made.stride[axis - 1] = made.stride[axis] * made.extent[axis];
    }
    const auto held = bytes(from);
    made.data = into.captured.emplace_back(held.begin(), held.end()).data();
    return made;
  }

  [[nodiscard]] std::vector<std::int32_t> words(const std::string& tensor) const {
    const io::SafetensorsEntry& from = entry(tensor);
    if (from.dtype != "I32") fail(tensor + ": holds " + from.dtype + ", expected I32");
    const auto held = bytes(from);
    std::vector<std::int32_t> made(held.size() / sizeof(std::int32_t));
    if (!made.empty()) std::memcpy(made.data(), held.data(), held.size());
    return made;
  }

  [[nodiscard]] ProgramParts parts(const std::string& name,
                                   const std::vector<Captured>& tensors) const {
    return {.code = words(name + ".code"),
            .indices = words(name + ".indices"),
            .constants = words(name + ".constants"),
            .results = words(name + ".results"),
            .registers = words(name + ".registers"),
            .tensors = tensors};
  }
  [[nodiscard]] float softcap() const {
    const io::SafetensorsEntry& from = entry("softcap");
    if (from.dtype != "F32" || from.end - from.begin != sizeof(float)) {
      fail("softcap: expected one number of F32");
    }
    float made = 0.0F;
    std::memcpy(&made, bytes(from).data(), sizeof made);
    return made;
  }
  [[nodiscard]] FileRule::Form form(const std::string& prefix, const std::vector<Captured>& tensors,
                                    bool has_capped) const {
    return {.plain = pair(prefix, tensors),
            .capped = has_capped ? pair(prefix + "capped.", tensors) : FileRule::Pair{}};
  }
  [[nodiscard]] FileRule::Pair pair(const std::string& prefix,
                                    const std::vector<Captured>& tensors) const {
    const auto program = [&](const std::string& name) {
      const ProgramParts of = parts(prefix + name, tensors);
      return std::make_unique<Program>(of.code, of.indices, of.constants, of.results, of.registers,
                                       of.tensors);
    };
    FileRule::Pair made{program("score"), program("slope")};
    if (made.score->results() != 1 || made.slope->results() != 2) {
      fail("expected one result of score and two of slope");
    }
    return made;
  }

  std::string name_;
  io::impl::MappedFile file_;
  io::SafetensorsHeader header_;
};

#if defined(KATT_HAS_CUDA)
[[noreturn]] void refuse_device() {
  throw InputError("score_rule: holds a rule of Python, which runs on the CPU alone");
}
#endif

/// The files that were read, by the names of their rules.
std::map<std::string, std::filesystem::path>& rule_files() {
  static std::map<std::string, std::filesystem::path> files;
  return files;
}

ExactRule exact_rule(const std::shared_ptr<const FileRule>& held) {
  return
      [held](double score, const QueryIndex& at, double /*position*/, double key, double& slope) {
        const ExactScore exact = ExactProgram(held->score_parts)
                                     .run(score, {.batch = at.batch,
                                                  .head = at.head,
                                                  .query = at.query,
                                                  .key = static_cast<std::int64_t>(key)});
        slope = exact.slope;
        return exact.score;
      };
}

}  // namespace

std::string add_rule_file(const std::filesystem::path& path) {
  const Reader reader(path);
  const std::shared_ptr<const FileRule> held = reader.read();
  NamedRule named;
  named.name = reader.rule_name();
  for (const NamedRule& known : named_rules()) {
    if (known.name == named.name) throw InputError("score_rule " + named.name + ": is taken");
    constexpr std::size_t kept = bench::text_axis_bytes;
    if (known.name.substr(0, kept) == named.name.substr(0, kept)) {
      throw InputError("score_rule " + named.name + ": result files hold " + std::to_string(kept) +
                       " bytes of a name, and those of " + known.name + " are the same");
    }
  }
  named.description = "a rule of Python";
  static_cast<RuleVariants<Host>&>(named) = {
      .forward = RuleTables<Host, ForwardArgs>(
          [held](const RuleExtents& of) { return forward_variants_of(held->rule(of)); }),
      .backward = RuleTables<Host, BackwardArgs>(
          [held](const RuleExtents& of) { return backward_variants_of(held->rule(of), {}); })};
#if defined(KATT_HAS_CUDA)
  static_cast<RuleVariants<Kokkos::Cuda>&>(named) = {
      .forward = RuleTables<Kokkos::Cuda, ForwardArgs>(
          [](const RuleExtents&) -> VariantTable<Kokkos::Cuda, ForwardArgs> { refuse_device(); }),
      .backward = RuleTables<Kokkos::Cuda, BackwardArgs>(
          [](const RuleExtents&) -> VariantTable<Kokkos::Cuda, BackwardArgs> { refuse_device(); })};
#endif
  named.exact = [held](std::int64_t) { return exact_rule(held); };
  rule_files()[named.name] = std::filesystem::absolute(path);
  named_rules().push_back(std::move(named));
  return named_rules().back().name;
}

std::filesystem::path rule_file_of(const std::string& rule) {
  const auto found = rule_files().find(rule);
  return found == rule_files().end() ? std::filesystem::path() : found->second;
}

}  // namespace katt::attention
