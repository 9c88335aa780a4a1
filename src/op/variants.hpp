#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/status.hpp"
#include "core/tensor.hpp"

namespace katt {

/// Values of a variant's parameters, in the order of their names. Empty asks for the default; 0 is
/// a value that is left open.
using Setting = std::vector<int>;

/// "64x32", "64x*" with a value left open, "auto" for the default.
[[nodiscard]] std::string to_text(const Setting& setting);

/// Why a variant does not take a setting; empty where it does.
[[nodiscard]] std::string setting_refusal(const std::string& variant,
                                          const std::vector<Setting>& settings,
                                          const Setting& setting);

/// Names the fastest variant that accepts the arguments.
inline constexpr std::string_view auto_variant = "auto";

/// Which kernel is to run: a variant by name, with a setting where the variant has parameters.
struct Config {
  std::string variant{auto_variant};  ///< name of the variant, or "auto"
  Setting setting{};                  ///< values of its parameters; empty: its default
};

namespace impl {

/// A property of a variant: a value, or a function of (args, rest…), of (exec, args, rest…), or of
/// (exec, args, setting, rest…), which takes the setting as anything that a Setting converts to. A
/// function may do without the rest.
template <class R, class Exec, class Args, class... Rest>
class Property {
 public:
  Property() = default;

  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Property>>>
  Property(F f) {
    using E = const Exec&;
    using A = const Args&;
    using S = const Setting&;
    if constexpr (std::is_invocable_v<const F&, E, A, S, Rest...>) {
      call_ = std::move(f);
    } else if constexpr (std::is_invocable_v<const F&, E, A, Rest...>) {
      call_ = [f](E exec, A args, S, Rest... rest) -> R { return f(exec, args, rest...); };
    } else if constexpr (std::is_invocable_v<const F&, E, A>) {
      call_ = [f](E exec, A args, S, Rest...) -> R { return f(exec, args); };
    } else if constexpr (std::is_invocable_v<const F&, A>) {
      call_ = [f](E, A args, S, Rest...) -> R { return f(args); };
    } else {
      call_ = [value = R(std::move(f))](E, A, S, Rest...) -> R { return value; };
    }
  }

  explicit operator bool() const { return static_cast<bool>(call_); }
  R operator()(const Exec& exec, const Args& args, const Setting& setting, Rest... rest) const {
    return call_(exec, args, setting, rest...);
  }

 private:
  std::function<R(const Exec&, const Args&, const Setting&, Rest...)> call_;
};

}  // namespace impl

/// A setting by name, usually that of a device.
template <class Exec, class Args>
struct Preset {
  std::string name;                             ///< what a sweep asks for, e.g. "avx512"
  impl::Property<Setting, Exec, Args> setting;  ///< the setting, or a function that gives it
  /// ok, or skipped with the reason why this machine cannot run it; absent: wherever the variant
  /// runs.
  impl::Property<Status, Exec, Args> supports{};
};

/// One way to compute an operation on an execution space. Built-in variants and those that a user's
/// program registers have the same form. Members left out take the default named in their comment.
/// Functions take (exec, args), and a variant with parameters may take the setting third: a
/// Setting, or a type of the operator's own that a Setting converts to.
template <class Exec, class Args>
struct Variant {
  /// A value, or a function of (args), (exec, args) or (exec, args, setting) that returns it.
  template <class R, class... Rest>
  using Property = impl::Property<R, Exec, Args, Rest...>;

  std::string name;         ///< unique in its table; "auto" is taken
  std::string description;  ///< what it does, in a line
  /// Variant "auto" is the one of the highest rank that accepts the arguments, the first of equals.
  /// Left out, 0: the baseline, and what nobody has measured.
  Property<int> rank{};
  /// Names of the parameters, e.g. {"tile_q", "tile_kv"}. Left out: none.
  std::vector<std::string> parameters{};
  /// The settings that can be asked for. Left out: none.
  std::vector<Setting> settings{};
  /// The default, where it is not the first of `settings`.
  Property<Setting> default_setting{};
  /// Settings by name, for devices.
  std::vector<Preset<Exec, Args>> presets{};
  /// True when it can run these arguments: ok, or skipped with the reason. Launches nothing. Left
  /// out: always.
  Property<Status> supports{};
  /// Bytes of workspace that run() needs for these arguments. Left out: none.
  Property<std::size_t> workspace_bytes{};
  /// Launches the operation on the instance; does not wait for it.
  Property<void, Workspace> run{};
  /// Which units of the machine run() uses for these arguments, e.g. "amx", "avx512", "blas". Left
  /// out: always the vectors that the build is for.
  Property<std::string> engine{};

  /// The setting that a request means.
  Setting resolve(const Exec& exec, const Args& args, const Setting& setting) const {
    if (!setting.empty() || settings.empty()) return setting;
    return default_setting ? default_setting(exec, args, setting) : settings.front();
  }

  /// supports(), and a refusal of a setting that is not listed.
  Status check(const Exec& exec, const Args& args, const Setting& setting) const {
    if (std::string refusal = setting_refusal(name, settings, setting); !refusal.empty()) {
      return Status::skipped(std::move(refusal));
    }
    return supports ? supports(exec, args, setting) : Status::ok();
  }
};

/// A call of an operation, decided: which variant runs and with which setting, whether it accepts
/// the arguments, and the workspace that it needs. VariantTable::call() makes it; launch() only
/// launches.
template <class Exec, class Args>
class Call {
 public:
  /// With the variant's default where no setting is asked for. All but the setting outlive the call.
  Call(const Variant<Exec, Args>& variant, const Exec& exec, const Args& args, const Setting& asked)
      : variant_(&variant),
        exec_(&exec),
        args_(&args),
        setting_(variant.resolve(exec, args, asked)),
        status_(variant.check(exec, args, setting_)) {}

  /// ok, or skipped with the reason why the variant or its setting cannot run here.
  [[nodiscard]] const Status& status() const { return status_; }
  /// The variant and the setting that launch() runs.
  [[nodiscard]] Config config() const { return {variant_->name, setting_}; }
  /// The variant that launch() runs.
  [[nodiscard]] const Variant<Exec, Args>& variant() const { return *variant_; }
  /// Bytes that launch() needs; 0 where the call is refused.
  [[nodiscard]] std::size_t workspace_bytes() const {
    if (!status_.is_ok() || !variant_->workspace_bytes) return 0;
    return variant_->workspace_bytes(*exec_, *args_, setting_);
  }
  /// The unit that computes; "" when the variant does not say.
  [[nodiscard]] std::string engine() const {
    return variant_->engine ? variant_->engine(*exec_, *args_, setting_) : "";
  }

  /// Launches what was not refused, in a workspace of workspace_bytes(). Does not wait.
  void launch(Workspace workspace) const { variant_->run(*exec_, *args_, setting_, workspace); }

  /// Launches, or refuses with status(). Throws InputError when the workspace is too small.
  Status run(Workspace workspace) const {
    if (!status_.is_ok()) return status_;
    if (const std::size_t needed = workspace_bytes(); workspace.bytes < needed) {
      throw InputError("variant " + variant_->name + ": workspace holds " +
                       std::to_string(workspace.bytes) + " bytes, expected " +
                       std::to_string(needed));
    }
    launch(workspace);
    return Status::ok();
  }

 private:
  const Variant<Exec, Args>* variant_;
  const Exec* exec_;
  const Args* args_;
  Setting setting_;
  Status status_;
};

/// The variants of one operation, in order of registration. The first is the naive baseline.
template <class Exec, class Args>
class VariantTable {
 public:
  /// A table of these variants. Throws InputError when two have one name.
  VariantTable(std::initializer_list<Variant<Exec, Args>> built_in) {
    for (const auto& variant : built_in) add(variant);
  }

  /// Adds a variant. Throws InputError when the name is taken.
  void add(Variant<Exec, Args> variant) {
    const auto taken = [&](const auto& known) { return known.name == variant.name; };
    if (variant.name == auto_variant || std::any_of(variants_.begin(), variants_.end(), taken)) {
      throw InputError("variant " + variant.name + ": the name is taken");
    }
    variants_.push_back(std::move(variant));
  }

  /// All variants, in order of registration.
  const std::vector<Variant<Exec, Args>>& all() const { return variants_; }

  /// The variant of that name. Throws InputError, which lists the known names.
  const Variant<Exec, Args>& find(const std::string& name) const {
    std::string known(auto_variant);
    for (const auto& variant : variants_) {
      if (variant.name == name) return variant;
      known += ", " + variant.name;
    }
    throw InputError("variant " + name + ": unknown; expected one of " + known);
  }

  /// The call that a request means, decided: the variant that is named, or the fastest that accepts
  /// these arguments ("auto", or no name); its default where no setting is asked for. `exec` and
  /// `args` outlive it. Throws InputError for an unknown variant. Launches nothing.
  Call<Exec, Args> call(const Exec& exec, const Args& args, const Config& config) const {
    const auto decided = [&](const Variant<Exec, Args>& variant) {
      return Call<Exec, Args>(variant, exec, args, config.setting);
    };
    if (!config.variant.empty() && config.variant != auto_variant) {
      return decided(find(config.variant));
    }
    std::optional<Call<Exec, Args>> best;
    std::pair<bool, int> merit{false, 0};  // whether it accepts, and its rank
    for (const auto& variant : variants_) {
      const int rank = variant.rank ? variant.rank(exec, args, {}) : 0;
      if (best && std::pair(true, rank) <= merit) continue;
      Call<Exec, Args> call = decided(variant);
      const std::pair own(call.status().is_ok(), rank);
      if (best && own <= merit) continue;
      best = std::move(call);
      merit = own;
    }
    if (!best) throw InputError("variant auto: there is no variant");
    return *std::move(best);
  }

  /// The variant and setting that call() decides on. Throws like call().
  Config resolve(const Exec& exec, const Args& args, const Config& config) const {
    return call(exec, args, config).config();
  }
  /// Whether that variant accepts the arguments, as Call::status(). Throws like call().
  Status supports(const Exec& exec, const Args& args, const Config& config) const {
    return call(exec, args, config).status();
  }
  /// Bytes of workspace that run() needs; 0 for a refused call. Throws like call().
  std::size_t workspace_bytes(const Exec& exec, const Args& args, const Config& config) const {
    return call(exec, args, config).workspace_bytes();
  }
  /// Decides and launches, as Call::run(). Throws InputError like both.
  Status run(const Exec& exec, const Args& args, const Config& config, Workspace workspace) const {
    return call(exec, args, config).run(workspace);
  }

 private:
  std::vector<Variant<Exec, Args>> variants_;
};

}  // namespace katt

/// Defines what an operator declares in its header for a pass ("forward" of ForwardArgs), for every
/// execution space of KATT_FOR_EACH_EXEC: forward(), which checks the arguments and runs a variant
/// of forward_variants().
#define KATT_DEFINE_PASS(pass, Args)                                                           \
  template <class Exec>                                                                        \
  Status pass(const Exec& exec, const Args& args, const Config& config, Workspace workspace) { \
    check(args);                                                                               \
    return pass##_variants<Exec>().run(exec, args, config, workspace);                         \
  }                                                                                            \
  KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PASS_, pass, Args)
/// The explicit instantiations of KATT_DEFINE_PASS for an execution space.
#define KATT_INSTANTIATE_PASS_(Exec, pass, Args)              \
  template VariantTable<Exec, Args>& pass##_variants<Exec>(); \
  template Status pass<Exec>(const Exec&, const Args&, const Config&, Workspace);

/// Defines forward_variants() of ForwardArgs: the table that an expression of Exec makes.
#define KATT_DEFINE_VARIANTS(pass, Args, ...)            \
  template <class Exec>                                  \
  VariantTable<Exec, Args>& pass##_variants() {          \
    static VariantTable<Exec, Args> table = __VA_ARGS__; \
    return table;                                        \
  }

/// The same for workspace_bytes() of operators that declare it.
#define KATT_DEFINE_WORKSPACE_BYTES(pass, Args)                                           \
  template <class Exec>                                                                   \
  std::size_t workspace_bytes(const Exec& exec, const Args& args, const Config& config) { \
    check(args);                                                                          \
    return pass##_variants<Exec>().workspace_bytes(exec, args, config);                   \
  }                                                                                       \
  KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_BYTES_, Args)
/// The explicit instantiations of KATT_DEFINE_WORKSPACE_BYTES for an execution space.
#define KATT_INSTANTIATE_BYTES_(Exec, Args) \
  template std::size_t workspace_bytes<Exec>(const Exec&, const Args&, const Config&);
