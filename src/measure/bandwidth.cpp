#include "measure/bandwidth.hpp"

#include <utility>

#include "machine/machine.hpp"

namespace katt::bench {
namespace {

const std::string label = "katt::bench::bandwidth";

/// Moves memory; there is nothing to verify.
template <class Exec>
class BandwidthCandidate : public Candidate {
 public:
  explicit BandwidthCandidate(impl::Workers<Exec> workers) : workers_(std::move(workers)) {}
  void fence() override { workers_.fence(); }
  void poison() override {}
  Errors verify() override { return {}; }

 protected:
  impl::Workers<Exec> workers_;
};

template <class Exec>
class ReadCandidate final : public BandwidthCandidate<Exec> {
 public:
  ReadCandidate(impl::Workers<Exec> workers, std::size_t bytes)
      : BandwidthCandidate<Exec>(std::move(workers)),
        data_("katt::bench::data", static_cast<std::size_t>(this->workers_.whole_floats(bytes))) {}

  void run() override {
    const auto& workers = this->workers_;
    workers.launch(
        impl::ReadKernel<Exec>{data_, workers.sink(), workers.count_for(data_.size()), 1}, label);
  }
  [[nodiscard]] double moved_bytes() const {
    return static_cast<double>(data_.extent(0) * sizeof(float));
  }

 private:
  impl::Floats<Exec> data_;
};

template <class Exec>
class CopyCandidate final : public BandwidthCandidate<Exec> {
 public:
  CopyCandidate(impl::Workers<Exec> workers, std::size_t bytes)
      : BandwidthCandidate<Exec>(std::move(workers)),
        source_("katt::bench::source",
                static_cast<std::size_t>(this->workers_.whole_floats(bytes / 2))),
        target_("katt::bench::target", source_.extent(0)) {}

  void run() override {
    const auto& workers = this->workers_;
    workers.launch(impl::CopyKernel<Exec>{source_, target_, workers.count_for(source_.size()), 1},
                   label);
  }
  [[nodiscard]] double moved_bytes() const {
    return static_cast<double>(2 * source_.extent(0) * sizeof(float));
  }

 private:
  impl::Floats<Exec> source_, target_;
};

}  // namespace

std::unique_ptr<Candidate> bandwidth_candidate(Backend backend, int threads,
                                               const std::string& traffic, double bytes,
                                               double& moved_bytes) {
  return visit_backend(backend, threads,
                       [&]<class Exec>(const Exec& exec) -> std::unique_ptr<Candidate> {
                         const auto make = [&]<class Made>() -> std::unique_ptr<Candidate> {
                           auto made = std::make_unique<Made>(impl::Workers<Exec>(exec, threads),
                                                              static_cast<std::size_t>(bytes));
                           moved_bytes = made->moved_bytes();
                           return made;
                         };
                         return traffic == "copy" ? make.template operator()<CopyCandidate<Exec>>()
                                                  : make.template operator()<ReadCandidate<Exec>>();
                       });
}

}  // namespace katt::bench
