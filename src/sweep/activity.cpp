#include "sweep/activity.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include "core/text.hpp"
#include "io/printable.hpp"

namespace katt::bench {
namespace {

constexpr std::chrono::seconds patience(3);
constexpr const char* erase_line = "\r\x1b[K";

/// Columns of a terminal.
std::size_t width_of(std::FILE* terminal) {
  winsize size{};
  return ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Activity::Activity(std::FILE* stream)
    : stream_(stream), is_terminal_(stream != nullptr && isatty(fileno(stream)) == 1) {}

Activity::~Activity() {
  end();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  if (watcher_.joinable()) watcher_.join();
}

void Activity::begin(const std::string& what) {
  if (stream_ == nullptr) return;
  const std::string line = io::impl::escaped(what);
  if (is_terminal_) {
    std::fprintf(stream_, "%s%s", erase_line, truncated(line, width_of(stream_) - 1).c_str());
    std::fflush(stream_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    what_ = line;
    since_ = std::chrono::steady_clock::now();
  }
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  changed_.notify_one();
}

void Activity::end() {
  if (stream_ == nullptr) return;
  if (is_terminal_) {
    std::fputs(erase_line, stream_);
    return;
  }
  const std::lock_guard lock(mutex_);
  what_.clear();
}

void Activity::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (what_.empty()) {
      changed_.wait(lock);
    } else if (std::chrono::steady_clock::now() - since_ < patience) {
      changed_.wait_until(lock, since_ + patience);
    } else {
      std::fprintf(stream_, "    %s\n", what_.c_str());
      std::fflush(stream_);
      what_.clear();
    }
  }
}

}  // namespace katt::bench
