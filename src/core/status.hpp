#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace katt {

/// The outcome of a request: done, refused with a reason (the request cannot run here, and nothing
/// was launched in its place), or failed with a reason.
class [[nodiscard]] Status {
 public:
  /// Outcome of the request.
  enum class Code {
    ok,       ///< done, or launched
    skipped,  ///< refused: it cannot run here, and nothing was launched
    failed    ///< it ran and went wrong
  };

  Status() = default;
  /// Done.
  static Status ok() { return {}; }
  /// Refused, with the reason.
  static Status skipped(std::string reason) { return {Code::skipped, std::move(reason)}; }
  /// Failed, with the reason.
  static Status failed(std::string reason) { return {Code::failed, std::move(reason)}; }

  Code code() const { return code_; }               ///< what became of the request
  bool is_ok() const { return code_ == Code::ok; }  ///< true when it was done
  /// Why it was refused or failed; empty when it was done.
  const std::string& reason() const { return reason_; }

  /// "ok", "skipped" or "failed", as the column `status` of a result file says it.
  std::string_view name() const {
    switch (code_) {
      case Code::ok: return "ok";
      case Code::skipped: return "skipped";
      case Code::failed: break;
    }
    return "failed";
  }

 private:
  Status(Code code, std::string reason) : code_(code), reason_(std::move(reason)) {}

  Code code_ = Code::ok;
  std::string reason_;
};

}  // namespace katt
