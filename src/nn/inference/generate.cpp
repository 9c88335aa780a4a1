#include "nn/inference/generate.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "nn/inference/pace.hpp"

namespace katt::nn {

namespace {

/// Tokens of a page of a session for several prompts.
constexpr std::int64_t page_size = 64;

/// Runs the steps of decoding, each on the faster number of threads.
template <class Exec>
class Steps {
 public:
  Steps(Session<Exec>& session, bool adapts)
      : session_(session),
        all_(session.exec()),
        one_(one_thread(all_)),
        adapts_(adapts && is_host_v<Exec> && all_.concurrency() > 1) {}
  ~Steps() { session_.use(all_); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  template <class F>
  std::invoke_result_t<F> operator()(const F& step) {
    if (!adapts_) return step();
    session_.use(pace_.next() == 0 ? all_ : one_);
    const Stopwatch watch;
    auto result = step();
    pace_.took(watch.seconds());
    return result;
  }

 private:
  static Exec one_thread(const Exec& exec) {
    if constexpr (is_host_v<Exec>) return serial_host();
    else return exec;
  }

  Session<Exec>& session_;
  Exec all_, one_;
  bool adapts_;
  Pace pace_;
};

/// A region for profilers that adds its time to `seconds`. The region is within that time.
class Phase {
 public:
  Phase(const char* name, double& seconds) : seconds_(seconds) {
    Kokkos::Profiling::pushRegion(name);
  }
  ~Phase() {
    Kokkos::Profiling::popRegion();
    seconds_ += watch_.seconds();
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  double& seconds_;
  Stopwatch watch_;
};

/// A running sequence.
struct Sequence {
  std::size_t prompt;
  std::int64_t number;  ///< of the session
  Sampler sampler;
};

}  // namespace

SessionOptions session_for(std::span<const std::vector<std::int64_t>> prompts,
                           std::int64_t max_new_tokens, std::int64_t batch, std::int64_t window,
                           std::int64_t sinks) {
  SessionOptions options{.batch = batch, .page_size = page_size, .window = window, .sinks = sinks};
  std::vector<std::int64_t> pages;
  for (const auto& prompt : prompts) {
    const std::int64_t length = std::ssize(prompt) + max_new_tokens;
    options.capacity = std::max(options.capacity, length);
    const std::int64_t kept = window > 0 ? std::min(length, window + sinks) : length;
    pages.push_back((kept + page_size - 1) / page_size);
  }
  if (window + sinks >= options.capacity) options.window = options.sinks = 0;  // nothing leaves
  std::ranges::sort(pages, std::greater<>());
  pages.resize(std::min(pages.size(), static_cast<std::size_t>(batch)));
  options.pages = std::accumulate(pages.begin(), pages.end(), std::int64_t{0});
  return options;
}

template <class Exec>
GeneratedBatch generate(Session<Exec>& session, const LlamaConfig& config,
                        std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options) {
  GeneratedBatch result;
  result.tokens.resize(prompts.size());
  std::vector<Sequence> active;
  Steps<Exec> steps(session, options.adapts_threads);
  std::size_t begun = 0;
  /// Takes the next token of a sequence; returns true when the sequence continues.
  const auto goes_on = [&](Sequence& sequence, std::int64_t token) {
    auto& tokens = result.tokens[sequence.prompt];
    tokens.push_back(token);
    if (std::ssize(tokens) < options.max_new_tokens &&
        !(options.stop_at_eos && config.is_end(tokens.back()))) {
      return true;
    }
    session.close(sequence.number);
    return false;
  };
  while (begun < prompts.size() || !active.empty()) {
    if (begun < prompts.size() && std::ssize(active) < session.batch()) {
      const Phase phase("prefill", result.prefill_s);
      Sequence next{begun, session.open(), Sampler(options.sampling)};
      std::vector<float> logits;
      try {
        logits = session.append_to({&next.number, 1}, prompts[begun++]);
      } catch (NotFiniteError& error) {
        error.sequence = next.prompt;
        throw;
      }
      if (goes_on(next, next.sampler.pick(logits))) active.push_back(std::move(next));
      continue;
    }
    const Phase phase("decode", result.decode_s);
    std::vector<std::int64_t> numbers, last;
    for (const Sequence& sequence : active) {
      numbers.push_back(sequence.number);
      last.push_back(result.tokens[sequence.prompt].back());
    }
    std::vector<std::int64_t> tokens;
    try {
      if (options.sampling.is_greedy()) {
        tokens = steps([&] { return session.append_greedily(numbers, last); });
      } else {
        const std::vector<float> logits = steps([&] { return session.append_to(numbers, last); });
        const auto vocab = logits.size() / active.size();
        for (std::size_t row = 0; row < active.size(); ++row) {
          const auto of_row = std::span(logits).subspan(row * vocab, vocab);
          tokens.push_back(active[row].sampler.pick(of_row));
        }
      }
    } catch (NotFiniteError& error) {
      error.sequence = active[error.sequence].prompt;
      throw;
    }
    std::vector<Sequence> left;
    for (std::size_t row = 0; row < active.size(); ++row) {
      if (goes_on(active[row], tokens[row])) left.push_back(std::move(active[row]));
    }
    active = std::move(left);
    ++result.steps;
  }
  return result;
}

template <class Exec>
Generated generate(Session<Exec>& session, const LlamaConfig& config,
                   std::span<const std::int64_t> prompt, const GenerateOptions& options) {
  Sampler sampler(options.sampling);
  Generated result;
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits;
  {
    const Phase phase("prefill", result.prefill_s);
    logits = session.append(prompt);
  }
  {
    const Phase phase("decode", result.decode_s);
    Steps<Exec> steps(session, options.adapts_threads);
    std::int64_t token = sampler.pick(logits);
    while (static_cast<std::int64_t>(result.tokens.size()) < options.max_new_tokens) {
      result.tokens.push_back(token);
      text.push_back(token);
      const bool is_last =
          static_cast<std::int64_t>(result.tokens.size()) == options.max_new_tokens ||
          (options.stop_at_eos && config.is_end(token));
      if (is_last) break;
      if (!options.use_cache) {
        session.clear();
        token = sampler.pick(steps([&] { return session.append(text); }));
      } else if (options.sampling.is_greedy()) {
        token = steps([&] { return session.append_greedily({}, {&token, 1}); }).front();
      } else {
        token = sampler.pick(steps([&] { return session.append({&token, 1}); }));
      }
    }
  }
  return result;
}

#define KATT_INSTANTIATE_GENERATE(Exec)                                                     \
  template Generated generate<Exec>(Session<Exec>&, const LlamaConfig&,                     \
                                    std::span<const std::int64_t>, const GenerateOptions&); \
  template GeneratedBatch generate<Exec>(Session<Exec>&, const LlamaConfig&,                \
                                         std::span<const std::vector<std::int64_t>>,        \
                                         const GenerateOptions&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GENERATE)

}  // namespace katt::nn
