#include "process/peer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/stopwatch.hpp"

extern char** environ;

namespace katt::bench {
namespace {

constexpr std::size_t longest_line = 1 << 20;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::generic_category().message(error));
}

/// Starts a program in a process group of its own, with descriptors 0 to 3 as the class says.
pid_t spawn(const std::string& program, const std::string& name, int socket, int messages,
            int memory) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, socket, 0);
  posix_spawn_file_actions_adddup2(&files, socket, 1);
  posix_spawn_file_actions_adddup2(&files, messages, 2);
  posix_spawn_file_actions_adddup2(&files, memory, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::array<char*, 3> arguments{const_cast<char*>(program.c_str()),
                                 const_cast<char*>(name.c_str()), nullptr};
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program.c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) fail("cannot start " + program, error);
  return pid;
}

}  // namespace

PeerProcess::PeerProcess(const std::filesystem::path& program, const std::string& name,
                         double timeout_s, const StopFlag& stop)
    : timeout_s_(timeout_s), stop_(stop) {
  std::array<int, 2> ends{-1, -1};
  try {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      fail("socketpair", errno);
    }
    socket_ = ends[0];
    messages_ = memfd_create("katt_peer_messages", MFD_CLOEXEC);
    memory_ = memfd_create("katt_peer_tensors", MFD_CLOEXEC);
    if (messages_ < 0 || memory_ < 0) fail("memfd_create", errno);
    pid_ = spawn(program.string(), name, ends[1], messages_, memory_);
  } catch (...) {
    for (const int file : {socket_, ends[1], messages_, memory_}) {
      if (file >= 0) close(file);
    }
    throw;
  }
  close(ends[1]);
}

PeerProcess::~PeerProcess() {
  kill();
  unmap();
  for (const int file : {socket_, messages_, memory_}) close(file);
}

std::string PeerProcess::ask(const std::string& line) {
  if (!alive()) throw std::runtime_error("the peer is not running");
  const std::string text = line + '\n';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) give_up("died");
    sent += static_cast<std::size_t>(n);
  }
  return read_line();
}

std::string PeerProcess::read_line() {
  const Stopwatch watch;
  for (;;) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > longest_line) give_up("answered with a line that does not end");
    if (stop_) give_up("was stopped");
    if (watch.seconds() > timeout_s_) {
      give_up("gave no answer within " + std::to_string(static_cast<int>(timeout_s_)) + " s");
    }
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    constexpr int patience_ms = 100;  // time until the stop flag is seen
    if (::poll(&waiting, 1, patience_ms) <= 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t n = ::read(socket_, bytes.data(), bytes.size());
    if (n > 0) unread_.append(bytes.data(), static_cast<std::size_t>(n));
    else if (n == 0 || errno != EINTR) give_up("died");
  }
}

std::span<std::byte> PeerProcess::share(std::size_t bytes) {
  unmap();
  if (ftruncate(memory_, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
  if (bytes == 0) return {};
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  shared_ = {static_cast<std::byte*>(mapped), bytes};
  return shared_;
}

void PeerProcess::unmap() {
  if (!shared_.empty()) munmap(shared_.data(), shared_.size());
  shared_ = {};
}

void PeerProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void PeerProcess::give_up(const std::string& reason) {
  kill();
  const std::string words = last_words();
  throw std::runtime_error("the peer " + reason + (words.empty() ? "" : ": " + words));
}

std::string PeerProcess::last_words() const {
  std::array<char, 1024> bytes{};
  const off_t size = lseek(messages_, 0, SEEK_END);
  const ssize_t n = pread(messages_, bytes.data(), bytes.size(),
                          std::max<off_t>(0, size - static_cast<off_t>(bytes.size())));
  std::string text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(0, n)));
  text.erase(std::min(text.find_last_not_of(" \t\r\n") + 1, text.size()));
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace katt::bench
