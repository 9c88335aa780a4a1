#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace katt {

/// The outcome of a request: done, refused with a reason (the request cannot run here, and nothing
/// was launched in its place), or failed with a reason.
class [[nodiscard]] Status {
 public:
  enum class Code { ok, skipped, failed };

  Status() = default;
  static Status ok() { return {}; }
  static Status skipped(std::string reason) { return {Code::skipped, std::move(reason)}; }
  static Status failed(std::string reason) { return {Code::failed, std::move(reason)}; }

  Code code() const { return code_; }
  bool is_ok() const { return code_ == Code::ok; }
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
