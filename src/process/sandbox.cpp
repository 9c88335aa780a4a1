#include "process/sandbox.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "process/sandbox_calls.hpp"

namespace katt::bench {
namespace {

// The interface of landlock, as Documentation/userspace-api/landlock.rst of Linux has it: the
// headers of a distribution may be older than its kernel.
struct LandlockRules {
  std::uint64_t files;    ///< accesses that are denied where no rule allows them
  std::uint64_t network;  ///< since ABI 4
  std::uint64_t scoped;   ///< since ABI 6
};
struct [[gnu::packed]] LandlockPath {
  std::uint64_t allowed;
  std::int32_t folder;
};
constexpr long create_ruleset = 444, add_rule = 445, restrict_self = 446;
constexpr unsigned ask_version = 1;
constexpr int path_beneath = 1;
constexpr std::uint64_t execute = 1U << 0U, write_file = 1U << 1U, read_file = 1U << 2U,
                        read_folder = 1U << 3U;
constexpr std::uint64_t all_of_first = (1U << 13U) - 1;  // ABI 1: those above, remove and make
constexpr std::uint64_t refer = 1U << 13U;               // ABI 2: rename and link
constexpr std::uint64_t truncate = 1U << 14U;            // ABI 3
constexpr std::uint64_t tcp = 0b11;                      // ABI 4: bind, connect
constexpr std::uint64_t device_ioctl = 1U << 15U;        // ABI 5
constexpr std::uint64_t scopes = 0b11;                   // ABI 6: abstract sockets, signals

#if defined(__x86_64__)
constexpr std::uint32_t architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t architecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t architecture = 0;  // no list of its system calls
#endif

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string("the sandbox cannot be entered: ") + what + ": " +
                           std::generic_category().message(errno));
}

long landlock_version() { return syscall(create_ruleset, nullptr, 0, ask_version); }

void allow_below(int rules, const char* path, std::uint64_t accesses) {
  const int folder = open(path, O_PATH | O_CLOEXEC);
  if (folder < 0) fail(path);
  const LandlockPath rule{.allowed = accesses, .folder = folder};
  const long error = syscall(add_rule, rules, path_beneath, &rule, 0);
  close(folder);
  if (error != 0) fail("landlock_add_rule");
}

void restrict_files() {
  const long version = landlock_version();
  LandlockRules denied{.files = all_of_first, .network = 0, .scoped = 0};
  if (version >= 2) denied.files |= refer;
  if (version >= 3) denied.files |= truncate;
  if (version >= 4) denied.network = tcp;
  if (version >= 5) denied.files |= device_ioctl;
  if (version >= 6) denied.scoped = scopes;
  const std::size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const auto rules = static_cast<int>(syscall(create_ruleset, &denied, size, 0));
  if (rules < 0) fail("landlock_create_ruleset");
  allow_below(rules, "/", execute | read_file | read_folder);
  allow_below(rules, "/dev/null", read_file | write_file);
  if (syscall(restrict_self, rules, 0) != 0) fail("landlock_restrict_self");
  close(rules);
}

/// A program of the kernel's filter, written from the front to the back.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, architecture, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load_call();
  }
  /// Ends with this answer for every call that nothing before has answered.
  void answer(std::uint32_t action) { add(BPF_RET | BPF_K, action); }
  void load_call() { load(offsetof(seccomp_data, nr)); }
  /// Answers one call; the others go on.
  void on(long call, std::uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1);
    answer(action);
  }
  /// Calls whose number is at least this: those of another interface, x32.
  void from(std::uint32_t call, std::uint32_t action) {
    add(BPF_JMP | BPF_JGE | BPF_K, call, 0, 1);
    answer(action);
  }
  /// Answers a call whose argument `which`, in its low half, has all bits of `bits` with `allowed`,
  /// and others with `refused`.
  void on_bits(long call, int which, std::uint32_t bits, std::uint32_t allowed,
               std::uint32_t refused) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 5);
    load_argument(which);
    add(BPF_ALU | BPF_AND | BPF_K, bits);
    add(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1);
    answer(allowed);
    answer(refused);
  }
  /// Answers a call whose argument `which`, in its low half, is one of `values` with `allowed`, and
  /// others with `refused`.
  void on_values(long call, int which, std::initializer_list<std::uint32_t> values,
                 std::uint32_t allowed, std::uint32_t refused) {
    const auto count = static_cast<int>(values.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, count + 3);
    load_argument(which);
    int left = count;
    for (const std::uint32_t value : values) add(BPF_JMP | BPF_JEQ | BPF_K, value, left--, 0);
    answer(refused);
    answer(allowed);
  }
  /// Answers a call whose argument `which`, in its low half, has one of `bits`; others go on.
  void on_any_bit(long call, int which, std::uint32_t bits, std::uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3);
    load_argument(which);
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    answer(action);
    load_call();
  }
  /// Answers a call whose argument `which` is NULL with `allowed`, and others with `refused`.
  void on_null(long call, int which, std::uint32_t allowed, std::uint32_t refused) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 6);
    load_argument(which);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
    load(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(which) + 4);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
    answer(allowed);
    answer(refused);
  }
  void install() {
    const sock_fprog program{.len = static_cast<unsigned short>(code_.size()),
                             .filter = code_.data()};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) fail("seccomp");
  }

 private:
  void add(int code, std::uint32_t value, int if_true = 0, int if_false = 0) {
    code_.push_back({static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true),
                     static_cast<std::uint8_t>(if_false), value});
  }
  void load(std::size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  }
  void load_argument(int which) {  // little-endian: the low half is first
    load(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(which));
  }

  std::vector<sock_filter> code_;
};

void restrict_calls(bool executes) {
  constexpr std::uint32_t allow = SECCOMP_RET_ALLOW;
  constexpr std::uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;
  constexpr std::uint32_t unknown = SECCOMP_RET_ERRNO | ENOSYS;
  constexpr std::uint32_t thread = 0x00010000;  // CLONE_THREAD
  const auto self = static_cast<std::uint32_t>(getpid());
  Filter filter;
#if defined(__x86_64__)
  constexpr std::uint32_t x32 = 0x40000000;
  filter.from(x32, refuse);
#endif
  // A team starts its threads with clone where clone3, whose flags a filter cannot see, is missing.
  filter.on(SYS_clone3, unknown);
  if (!executes) filter.on(SYS_execve, refuse);  // its peak of memory would begin again
  for (const long call : impl::missing_calls) filter.on(call, unknown);
  for (const long call : impl::allowed_calls) filter.on(call, allow);
  filter.on_bits(SYS_clone, 0, thread, allow, refuse);
  filter.on_values(SYS_tgkill, 0, {self}, allow, refuse);
  filter.on_values(SYS_kill, 0, {self}, allow, refuse);
  filter.on_null(SYS_prlimit64, 2, allow, refuse);  // limits are read, not set
  filter.on_values(SYS_sched_setaffinity, 0, {0}, allow, refuse);
  filter.on_values(SYS_prctl, 0, {PR_SET_NAME}, allow, refuse);
  // No locks, which others would wait for, and no signals when a file of its own is ready.
  filter.on_values(SYS_fcntl, 1, {F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC},
                   allow, refuse);
  // Is it a terminal, how much is there to read: no attributes of files.
  filter.on_values(SYS_ioctl, 1, {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX}, allow,
                   refuse);
  // Anonymous memory that is shared, or grows as a stack does, counts in no limit.
  filter.on_any_bit(SYS_mmap, 3, MAP_GROWSDOWN, refuse);
  filter.on_bits(SYS_mmap, 3, MAP_SHARED | MAP_ANONYMOUS, refuse, allow);
  filter.answer(refuse);
  filter.install();
}

void limit(int resource, std::size_t most) {
  const rlimit value{.rlim_cur = most, .rlim_max = most};
  if (setrlimit(resource, &value) != 0) fail("setrlimit");
}

/// Drops root's rights beyond those of others, except to read files: a sweep by root reads its
/// user's kernels.
void drop_capabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> sets{};
  if (syscall(SYS_capget, &header, sets.data()) != 0) fail("capget");
  const std::uint32_t kept = sets[0].permitted & (1U << CAP_DAC_READ_SEARCH);
  sets = {};
  sets[0].permitted = sets[0].effective = kept;
  if (syscall(SYS_capset, &header, sets.data()) != 0) fail("capset");
}

}  // namespace

std::string missing_for_sandbox() {
  if (architecture == 0) return "a list of the system calls of this architecture";
  if (landlock_version() < 1) {
    return "landlock, which Linux has since 5.13 where the security module is on";
  }
  const std::uint32_t action = SECCOMP_RET_ERRNO;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) {
    return "seccomp with filters, which Linux has since 4.14 where it is compiled in";
  }
  return {};
}

void enter_sandbox(const SandboxLimits& limits) {
  if (const std::string missing = missing_for_sandbox(); !missing.empty()) {
    throw std::runtime_error("the sandbox needs " + missing);
  }
  constexpr std::size_t most_text = 1 << 20;
  constexpr std::size_t most_files = 256;
  limit(RLIMIT_DATA, limits.data_bytes);
  limit(RLIMIT_FSIZE, most_text);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_NOFILE, most_files);
  limit(RLIMIT_MEMLOCK, 0);
  drop_capabilities();
  signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails
  if (prctl(PR_SET_DUMPABLE, 0) != 0) fail("PR_SET_DUMPABLE");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("PR_SET_NO_NEW_PRIVS");
  restrict_files();
  restrict_calls(limits.executes);
}

}  // namespace katt::bench
