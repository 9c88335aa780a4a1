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
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/text.hpp"
#include "process/child_process.hpp"

extern char** environ;

namespace katt::bench {
namespace {

constexpr std::size_t longest_line = 1 << 20;
constexpr std::size_t longest_sealed_line = 4096;  // a reader of JSON uses stack for what is nested

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::generic_category().message(error));
}

/// A descriptor above those that a child is given.
int above(int file) {
  constexpr int first = 16;
  if (file < 0) return file;
  const int moved = fcntl(file, F_DUPFD_CLOEXEC, first);
  close(file);
  return moved;
}

/// A file in memory.
int memory_file(const char* name, unsigned flags = 0) {
  const int file = above(memfd_create(name, MFD_CLOEXEC | flags));
  if (file < 0) fail("memfd_create", errno);
  return file;
}

/// The environment of a child: this one's, or the few variables that numerical libraries need.
std::vector<char*> environment(bool clean) {
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool known = text.starts_with("PATH=") || text.starts_with("LANG=") ||
                       text.starts_with("LC_ALL=") || text.starts_with("OMP_");
    if (!clean || known) kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

/// Starts a program in a process group of its own, with these files as its descriptors 0, 1, 2, ….
pid_t spawn(const PeerLaunch& launch, std::span<const int> files) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (std::size_t i = 0; i < files.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, files[i], static_cast<int>(i));
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, static_cast<int>(files.size()));
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const std::string program = launch.program.string();
  std::vector<char*> arguments{const_cast<char*>(program.c_str())};
  for (const std::string& argument : launch.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> variables = environment(launch.clean_environment);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("cannot start " + program, error);
  return pid;
}

std::span<std::byte> map(int file, std::size_t bytes) {
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
  if (bytes == 0) return {};
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(mapped), bytes};
}

}  // namespace

PeerProcess::PeerProcess(PeerLaunch launch, const StopFlag& stop)
    : launch_(std::move(launch)), stop_(stop) {
  try {
    shared_.file = memory_file("katt_peer_tensors");
    start();
  } catch (...) {
    release();
    throw;
  }
}

PeerProcess::PeerProcess(PeerLaunch launch, Sealed sizes, const StopFlag& stop)
    : launch_(std::move(launch)), stop_(stop) {
  try {
    // Neither file changes its size: a shorter one would end this process where it reads.
    const auto seal = [](Mapped& mapped, const char* name, std::size_t bytes, int more) {
      mapped.file = memory_file(name, MFD_ALLOW_SEALING);
      mapped.bytes = map(mapped.file, std::max<std::size_t>(bytes, 1));
      if (fcntl(mapped.file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more) != 0) {
        fail("cannot seal the memory of " + std::string(name), errno);
      }
    };
    seal(inputs_, "katt_candidate_inputs", sizes.inputs, F_SEAL_FUTURE_WRITE);
    seal(outputs_, "katt_candidate_outputs", sizes.outputs, 0);
    start();
  } catch (...) {
    release();
    throw;
  }
}

PeerProcess::~PeerProcess() {
  kill();
  release();
}

void PeerProcess::start() {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail("socketpair", errno);
  }
  socket_ = above(ends[0]);
  const int child = above(ends[1]);
  try {
    messages_ = memory_file("katt_peer_messages");
    std::vector<int> files{child, child, messages_};
    if (is_sealed()) files.insert(files.end(), {inputs_.file, outputs_.file});
    else files.push_back(shared_.file);
    pid_ = spawn(launch_, files);
  } catch (...) {
    close(child);
    throw;
  }
  close(child);
}

void PeerProcess::release() {
  for (Mapped* mapped : {&shared_, &inputs_, &outputs_}) {
    unmap(*mapped);
    if (mapped->file >= 0) close(mapped->file);
    mapped->file = -1;
  }
  for (int* file : {&socket_, &messages_}) {
    if (*file >= 0) close(*file);
    *file = -1;
  }
}

std::string PeerProcess::ask(const std::string& line) {
  if (!alive()) throw std::runtime_error(launch_.noun + " is not running");
  refuse_more();
  const std::string text = line + '\n';
  const Stopwatch watch;  // it covers all the time in which the child can run
  continue_child();
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n =
        send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) sent += static_cast<std::size_t>(n);
    else if (n < 0 && errno == EAGAIN) wait_for(POLLOUT, watch, "read no request");
    else if (n == 0 || errno != EINTR) give_up_dead();
  }
  std::string reply = read_line();
  if (is_sealed()) wait_for_stop();
  last_ask_s_ = watch.seconds();
  if (is_sealed()) ::kill(-pid_, SIGSTOP);  // its own children, of a child outside of the cage
  return reply;
}

void PeerProcess::continue_child() {
  if (!stopped_) return;
  ::kill(-pid_, SIGCONT);
  stopped_ = false;
}

/// A child with sealed memory stops itself behind its reply: sooner than a signal from here could,
/// which arrives when this process has been woken. Its time ends with that.
void PeerProcess::wait_for_stop() {
  constexpr double soon_s = 1e-3, patience_s = 2;
  const Stopwatch watch;
  for (;;) {
    const pid_t changed = waitpid(pid_, &status_, WUNTRACED | WNOHANG);
    if (changed == pid_ && WIFSTOPPED(status_)) break;
    if (changed == pid_) {
      ::kill(-pid_, SIGKILL);  // its own children
      pid_ = -1;               // reaped
      give_up_dead();
    }
    if (watch.seconds() > patience_s || stop_) give_up("did not stop behind its reply");
    if (watch.seconds() < soon_s) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  stopped_ = true;
}

/// Refuses bytes that a child sent unasked: they cannot be the reply to a request.
void PeerProcess::refuse_more() {
  std::array<char, 256> bytes{};
  const ssize_t n = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n > 0) unread_.append(bytes.data(), static_cast<std::size_t>(n));
  if (!unread_.empty()) give_up("sent more than one reply to a request");
}

bool PeerProcess::wait_for(short event, const Stopwatch& watch, const std::string& fault) {
  if (stop_) give_up("was stopped");
  if (watch.seconds() > launch_.timeout_s) {
    give_up(fault + " within " + to_text(launch_.timeout_s) + " s");
  }
  pollfd waiting{.fd = socket_, .events = event, .revents = 0};
  constexpr int patience_ms = 100;  // time until the stop flag is seen
  return ::poll(&waiting, 1, patience_ms) > 0;
}

std::string PeerProcess::read_line() {
  const Stopwatch watch;
  for (;;) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > (is_sealed() ? longest_sealed_line : longest_line))
      give_up("answered with a line that does not end");
    if (!wait_for(POLLIN, watch, "gave no answer")) continue;
    std::array<char, 4096> bytes{};
    const ssize_t n = ::read(socket_, bytes.data(), bytes.size());
    if (n > 0) unread_.append(bytes.data(), static_cast<std::size_t>(n));
    else if (n == 0 || errno != EINTR) give_up_dead();
  }
}

std::span<std::byte> PeerProcess::share(std::size_t bytes) {
  unmap(shared_);
  shared_.bytes = map(shared_.file, bytes);
  return shared_.bytes;
}

void PeerProcess::unmap(Mapped& mapped) {
  if (!mapped.bytes.empty()) munmap(mapped.bytes.data(), mapped.bytes.size());
  mapped.bytes = {};
}

std::size_t PeerProcess::status_bytes(std::string_view key) const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoull(line.substr(key.size())) * 1024;  // in KiB
  }
  throw std::runtime_error(launch_.noun + " does not tell its memory: its first thread has ended");
}

void PeerProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void PeerProcess::give_up(const std::string& reason) {
  kill();
  const std::string words = last_words();
  throw std::runtime_error(launch_.noun + " " + reason + (words.empty() ? "" : ": " + words));
}

void PeerProcess::give_up_dead() {
  // A process closes its files before it is a zombie: until then a kill would hide how it ended.
  for (int waited_ms = 0; pid_ > 0 && waited_ms < 200; ++waited_ms) {
    const pid_t ended = waitpid(pid_, &status_, WNOHANG);
    if (ended == pid_) {
      ::kill(-pid_, SIGKILL);
      pid_ = -1;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (pid_ > 0) give_up("closed its connection");
  if (WIFSIGNALED(status_)) give_up("was ended by " + io::impl::signal_text(WTERMSIG(status_)));
  const bool silent = is_sealed() && last_words().empty();
  give_up("died" + (silent ? " with status " + std::to_string(WEXITSTATUS(status_)) : ""));
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
