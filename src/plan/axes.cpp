#include "plan/axes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"
#include "machine/machine.hpp"

namespace katt::bench {
namespace {

constexpr std::size_t max_values = 10000;  ///< values of one axis: more is a slip, not a sweep

/// "sweep.toml:7: seq 512:16384: MESSAGE", with a long text cut.
[[noreturn]] void reject(std::string_view where, std::string_view text,
                         const std::string& message) {
  std::string shown(text);
  if (shown.size() > 60) shown = truncated(shown, 57) + "...";
  throw InputError(std::string(where) + " " +
                   (shown.empty() ? "\"\"" : io::impl::printable(shown)) + ": " + message);
}

/// An item in quotes, cut where it is long.
std::string quoted(const std::string& item) {
  return "\"" + io::impl::printable(item.size() > 40 ? truncated(item, 37) + "..." : item) + "\"";
}

bool is_real(const AxisSpec& spec) { return std::holds_alternative<double>(spec.fallback); }

/// True for an axis of 0 and 1, which also takes true and false.
bool is_switch(const AxisSpec& spec) {
  return !is_real(spec) && spec.minimum == 0 && spec.maximum == 1;
}

std::string number_text(const AxisSpec& spec, double value) {
  return is_real(spec) ? to_text(value) : std::to_string(static_cast<std::int64_t>(value));
}

/// "expected an integer from 1 to 4096", or the choices.
std::string expectation(const AxisSpec& spec) {
  if (!spec.choices.empty()) return "expected " + join(spec.choices, ", ");
  return std::string("expected ") + (is_real(spec) ? "a number" : "an integer") + " from " +
         number_text(spec, spec.minimum) + " to " + number_text(spec, spec.maximum);
}

class Parser {
 public:
  Parser(const AxisSpec& spec, const AxisText& typed) : spec_(spec), typed_(typed) {}

  std::vector<AxisValue> parse() {
    const auto items = split(typed_.text, ',');
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].empty()) {
        fail(
            (items.size() == 1 ? "holds no value" : "item " + std::to_string(i + 1) + " is empty") +
            std::string("; ") + expectation(spec_));
      }
      if (!spec_.choices.empty()) add_choice(items[i]);
      else if (items[i].find(':') != std::string::npos) add_range(items[i]);
      else add_number(number(items[i]));
    }
    return std::move(values_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    reject(typed_.where, typed_.text, message);
  }

  void add(AxisValue value) {
    if (!known_.insert(value).second) return;
    if (values_.size() == max_values) {
      fail("more than " + std::to_string(max_values) + " values");
    }
    values_.push_back(std::move(value));
  }

  void add_choice(const std::string& item) {
    const auto is_choice = [&](const std::string& name) {
      return std::find(spec_.choices.begin(), spec_.choices.end(), name) != spec_.choices.end();
    };
    if (is_choice(item)) return add(item);
    if (const auto dtype = dtype_of_text(item); dtype && is_choice(std::string(name_of(*dtype)))) {
      return add(std::string(name_of(*dtype)));
    }
    const auto backend = backend_from_name(item);
    if (spec_.name == "backend" && backend) {
      fail(backend_problem(*backend) + "; " + expectation(spec_));
    }
    const std::string near = suggestion(item, spec_.choices);
    fail(quoted(item) + " is unknown; " + (near.empty() ? "" : near + " ") + expectation(spec_));
  }

  double number(const std::string& item) const {
    if (const auto truth = parse_truth(item); truth && is_switch(spec_)) return *truth ? 1 : 0;
    const Parsed parsed = is_real(spec_) ? parse_real(item) : parse_size(item);
    if (!parsed.problem.empty()) {
      fail(quoted(item) + " " + parsed.problem + "; " + expectation(spec_));
    }
    if (parsed.real < spec_.minimum || parsed.real > spec_.maximum) {
      fail(item + " is too " + (parsed.real < spec_.minimum ? "small; " : "large; ") +
           expectation(spec_));
    }
    return parsed.real;  // integers within the limits of an axis are exact
  }

  void add_number(double value) {
    if (is_real(spec_)) add(value);
    else add(static_cast<std::int64_t>(value));
  }

  /// FIRST:LAST:xFACTOR or FIRST:LAST:+STEP.
  void add_range(const std::string& item) {
    const auto parts = split(item, ':');
    if (parts.size() != 3 || parts[2].empty() || (parts[2][0] != 'x' && parts[2][0] != '+')) {
      fail(quoted(item) + " is no range; expected FIRST:LAST:xFACTOR or FIRST:LAST:+STEP");
    }
    const double first = number(parts[0]);
    const double last = number(parts[1]);
    if (first > last) fail("the range " + quoted(item) + " ends before it begins");
    const bool factor = parts[2][0] == 'x';
    const std::string step_text = parts[2].substr(1);
    const Parsed step = is_real(spec_) ? parse_real(step_text) : parse_size(step_text);
    if (!step.problem.empty()) fail(quoted(step_text) + " " + step.problem);
    if (step.real <= (factor ? 1.0 : 0.0)) {
      fail("the range " + quoted(item) + " never ends; expected a " +
           (factor ? "factor above 1" : "step above 0"));
    }
    if (factor && first <= 0)
      fail("the range " + quoted(item) + " never ends; a factor needs FIRST above 0");
    // A little slack lets 0.1:0.3:+0.1 hold 0.3.
    const double slack = is_real(spec_) ? 1e-9 * std::max(std::abs(last), std::abs(first)) : 0;
    double value = first;
    for (std::int64_t i = 1; value <= last + slack; ++i) {
      // a step may be too small to change the number
      if (i > static_cast<std::int64_t>(max_values)) {
        fail("the range " + quoted(item) + " has more than " + std::to_string(max_values) +
             " values");
      }
      add_number(std::min(value, last));
      value = factor ? value * step.real : first + static_cast<double>(i) * step.real;
    }
  }

  const AxisSpec& spec_;
  const AxisText& typed_;
  std::vector<AxisValue> values_;
  std::set<AxisValue> known_;  ///< the same
};

}  // namespace

std::vector<AxisValue> parse_axis(const AxisSpec& spec, const AxisText& typed) {
  return Parser(spec, typed).parse();
}

std::vector<Setting> parse_tiles(const AxisText& typed, std::span<const std::string> presets) {
  const std::string expected =
      "expected auto, tiles such as 64x64,128x32" +
      (presets.empty() ? std::string() : ", or presets: " + join(presets, ", "));
  std::vector<Setting> tiles;
  for (const std::string& item : split(typed.text, ',')) {
    Setting tile;
    if (item != "auto") {
      const auto extents = split(item, 'x');
      if (extents.size() != 2) {
        reject(typed.where, typed.text, quoted(item) + " is no tile; " + expected);
      }
      for (const std::string& text : extents) {
        const Parsed extent = parse_integer(text);
        if (!extent.problem.empty() || extent.integer < 1 || extent.integer > max_tile) {
          reject(typed.where, typed.text,
                 "extent " + quoted(text) + " of " + quoted(item) +
                     " is not an integer from 1 to " + std::to_string(max_tile) + "; " + expected);
        }
        tile.push_back(static_cast<int>(extent.integer));
      }
    }
    if (std::find(tiles.begin(), tiles.end(), tile) == tiles.end()) tiles.push_back(tile);
  }
  return tiles;
}

std::int64_t parse_count(std::string_view where, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum) {
  if (const auto truth = parse_truth(text); truth && minimum == 0 && maximum == 1) {
    return *truth ? 1 : 0;
  }
  const Parsed parsed = parse_size(text);
  if (!parsed.problem.empty() || parsed.integer < minimum || parsed.integer > maximum) {
    const std::string least = std::to_string(minimum), most = std::to_string(maximum);
    const bool is_switch = minimum == 0 && maximum == 1;
    reject(where, text,
           is_switch ? "expected 0 or 1" : "expected an integer from " + least + " to " + most);
  }
  return parsed.integer;
}

double parse_number(std::string_view where, std::string_view text, double minimum, double maximum) {
  const Parsed parsed = parse_real(text);
  if (!parsed.problem.empty() || parsed.real < minimum || parsed.real > maximum) {
    reject(where, text, "expected a number from " + to_text(minimum) + " to " + to_text(maximum));
  }
  return parsed.real;
}

std::optional<Dtype> dtype_of_text(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, Dtype>, 6> others{{{"fp32", Dtype::f32},
                                                                      {"float32", Dtype::f32},
                                                                      {"fp16", Dtype::f16},
                                                                      {"float16", Dtype::f16},
                                                                      {"half", Dtype::f16},
                                                                      {"bfloat16", Dtype::bf16}}};
  for (const auto& [name, dtype] : others) {
    if (name == text) return dtype;
  }
  return dtype_from_name(text);
}

std::string to_text(const AxisValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value)) return to_text(*real);
  return std::get<std::string>(value);
}

std::string canonical_key(std::string_view key) {
  key.remove_prefix(std::min(key.find_first_not_of('-'), key.size()));
  std::string canonical(key);
  std::replace(canonical.begin(), canonical.end(), '-', '_');
  return canonical;
}

}  // namespace katt::bench
