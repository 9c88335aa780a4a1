#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "op/adapter.hpp"
#include "op/collective.hpp"
#include "op/reference/fill.hpp"
#include "op/reference/new_values.hpp"
#include "op/reference/sample.hpp"
#include "ranks/plain_mpi.hpp"

/// The operations of a Communicator as operators of sweeps, beside the calls of MPI that a user
/// would write. Bus bandwidths are those of nccl-tests (doc/PERFORMANCE.md there): of R ranks and n
/// bytes, 2(R − 1)/R · n of an all_reduce, (R − 1)/R · n of an all_gather or a reduce_scatter, n of a
/// send_recv, over the time.
namespace katt::collectives {

namespace {

using bench::Point;

enum class Kind : std::uint8_t { all_reduce, all_gather, reduce_scatter, send_recv };

constexpr const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::all_gather: return "all_gather";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::send_recv: break;
  }
  return "send_recv";
}

constexpr const char* plain = bench::plain_mpi;
constexpr const char* ours = "rounds";

/// Element i of rank r's input: a multiple of 1/8 so small that every dtype holds sums over 16 ranks
/// exactly, in whatever order they are taken.
float value_of(std::uint64_t seed, int rank, std::int64_t i) {
  const std::uint64_t bits =
      testing::hash(seed * 64 + static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i));
  return (static_cast<float>(bits % 16) - 8.0F) / 8.0F;
}

/// The computation of the ranks of a case.
struct Problem {
  Kind kind;
  Backend backend;
  int threads;
  Dtype dtype;
  std::int64_t total;  ///< elements of all parts
  /// The seed of the values by the element from which on it holds. A change takes the places of those
  /// within it, so that there are about as many as changes fit beside each other.
  std::map<std::int64_t, std::uint64_t> seeds;

  /// Element i of the input of a rank, by its place among all.
  [[nodiscard]] float value(int rank, std::int64_t i) const {
    return value_of(seed_at(i), rank, i);
  }
  [[nodiscard]] std::uint64_t seed_at(std::int64_t i) const {
    return std::prev(seeds.upper_bound(i))->second;
  }
  /// Gives elements of every rank other values, and returns which.
  [[nodiscard]] testing::ChangingRows change(std::uint64_t random, bool all) {
    std::mt19937_64 draw(random);
    const testing::ChangingRows rows = testing::rows_to_change(draw, total, 1, 1, all);
    const std::int64_t end = rows.first + rows.count;
    const std::uint64_t behind = seed_at(end);
    seeds.erase(seeds.lower_bound(rows.first), seeds.upper_bound(end));
    seeds[rows.first] = draw();
    if (end < total) seeds[end] = behind;
    return rows;
  }

  [[nodiscard]] ranks::Part part(const ranks::Communicator& group) const {
    return ranks::part_of(total, group.size(), group.rank());
  }
  /// Elements that a rank reads, and where they lie among all.
  [[nodiscard]] ranks::Part read(const ranks::Communicator& group) const {
    return kind == Kind::all_gather ? part(group) : ranks::Part{0, total};
  }
  [[nodiscard]] ranks::Part written(const ranks::Communicator& group) const {
    return kind == Kind::reduce_scatter ? part(group) : ranks::Part{0, total};
  }
  /// Element i of the result on a rank of the group.
  [[nodiscard]] float expected(const ranks::Communicator& group, std::int64_t i) const {
    if (kind == Kind::send_recv) {
      return value((group.rank() + group.size() - 1) % group.size(), i);
    }
    if (kind == Kind::all_gather) {
      const std::int64_t longest = ranks::part_of(total, group.size(), 0).count;
      return value(static_cast<int>(i / longest), i);
    }
    float sum = 0;
    for (int rank = 0; rank < group.size(); ++rank) sum += value(rank, i);
    return sum;
  }
};

template <class Exec>
class Candidate final : public bench::CollectiveCandidate {
 public:
  Candidate(const ranks::Communicator& ranks, Exec exec, const Problem& problem,
            const bench::Tensor<1>& input, bool is_plain)
      : CollectiveCandidate(ranks), exec_(std::move(exec)), problem_(problem), input_(input) {
    bench::on_all_ranks(group(), [&] {
      output_ = bench::Tensor<1>(std::string("katt::") + name_of(problem.kind) + "::output",
                                 problem.backend, problem.dtype, {problem.written(group()).count});
    });
    if (is_plain) mpi_ = std::make_unique<ranks::PlainMpi>(group());
  }

  bool restore() override {
    // A sum stands in place of what was summed; summed again it only grows.
    if (problem_.kind != Kind::all_reduce || mpi_) return false;
    const std::vector<float> values = input_.download();
    output_.upload(values);
    return false;
  }
  void fence() override { exec_.fence("katt::collectives::candidate"); }
  void poison() override { output_.poison(); }
  [[nodiscard]] std::string engine() const override { return mpi_ ? plain : "dist"; }

 protected:
  void compute() override {
    const TensorRef<1>& from = input_.ref();
    const TensorRef<1>& to = output_.ref();
    if (mpi_) return plain_call(from.data, to.data);
    switch (problem_.kind) {
      case Kind::all_reduce: return group().all_reduce(exec_, to).wait();
      case Kind::all_gather: return group().all_gather(exec_, from, to).wait();
      case Kind::reduce_scatter: return group().reduce_scatter(exec_, from, to).wait();
      case Kind::send_recv: break;
    }
    const int ranks = group().size();
    ranks::Request sent = group().send(exec_, from, (group().rank() + 1) % ranks);
    group().recv(exec_, to, (group().rank() + ranks - 1) % ranks).wait();
    sent.wait();
  }

  [[nodiscard]] bench::Errors compare() override {
    const std::vector<float> made = output_.download();
    const std::int64_t first = problem_.written(group()).begin;
    const auto count = static_cast<std::int64_t>(made.size());
    std::set<std::int64_t> places;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 1024); ++i) {
      places.insert({i, count - 1 - i});
      places.insert(static_cast<std::int64_t>(
          testing::hash(testing::SampleSeed::current(), static_cast<std::uint64_t>(i)) %
          static_cast<std::uint64_t>(count)));
    }
    testing::Comparison comparison;
    for (const std::int64_t i : places) {
      comparison.add(name_of(problem_.kind), {i}, made[static_cast<std::size_t>(i)],
                     problem_.expected(group(), first + i), 0);
    }
    return comparison.result();
  }

  [[nodiscard]] double bus_bytes() const override {
    const auto bytes =
        static_cast<double>(problem_.total) * static_cast<double>(size_of(problem_.dtype));
    const double others = (group().size() - 1.0) / group().size();
    switch (problem_.kind) {
      case Kind::all_reduce: return 2 * others * bytes;
      case Kind::all_gather:
      case Kind::reduce_scatter: return others * bytes;
      case Kind::send_recv: break;
    }
    return group().size() == 1 ? 0 : bytes;
  }
  [[nodiscard]] bool sends_through_ranks() const override { return mpi_ == nullptr; }

 private:
  void plain_call(const void* from, void* to) const {
    switch (problem_.kind) {
      case Kind::all_reduce: return mpi_->all_reduce(from, to, problem_.total, problem_.dtype);
      case Kind::all_gather: return mpi_->all_gather(from, to, problem_.total, problem_.dtype);
      case Kind::reduce_scatter:
        return mpi_->reduce_scatter(from, to, problem_.total, problem_.dtype);
      case Kind::send_recv: return mpi_->send_recv(from, to, problem_.total, problem_.dtype);
    }
  }

  Exec exec_;
  const Problem& problem_;
  const bench::Tensor<1>& input_;
  bench::Tensor<1> output_;
  std::unique_ptr<ranks::PlainMpi> mpi_;
};

class Case final : public bench::Case {
 public:
  Case(ranks::Communicator group, const Problem& problem)
      : group_(std::move(group)), problem_(problem) {
    bench::on_all_ranks(group_, [&] {
      const ranks::Part read = problem_.read(group_);
      input_ = bench::Tensor<1>(std::string("katt::") + name_of(problem.kind) + "::input",
                                problem.backend, problem.dtype, {read.count});
      fill({0, problem_.total});
    });
  }

  [[nodiscard]] bench::Work work() const override {
    return {
        .flops = 0,
        .bytes = static_cast<double>(problem_.total) * static_cast<double>(size_of(problem_.dtype)),
        .compute_ceiling = "",
        .traffic = "copy"};
  }
  [[nodiscard]] Status supports(const Config& config) const override {
    if (config.variant == plain && problem_.backend == Backend::cuda) {
      return Status::skipped("MPI sees host memory alone");
    }
    if (problem_.kind == Kind::send_recv && group_.size() == 1) {
      return Status::skipped("one rank has nobody to send to");
    }
    if (problem_.kind == Kind::all_reduce && group_.size() == 1 && config.variant != plain) {
      return Status::skipped("one rank has nothing to add");  // and does nothing, in place
    }
    return Status::ok();
  }
  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    return visit_backend(problem_.backend, problem_.threads,
                         [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
                           return std::make_unique<Candidate<Exec>>(group_, exec, problem_, input_,
                                                                    config.variant == plain);
                         });
  }

  std::vector<bench::InputChange> change(std::uint64_t random, bool all) override {
    const testing::ChangingRows rows = problem_.change(random, all);
    fill(rows);
    return {{.name = "input",
             .first = static_cast<std::size_t>(rows.first),
             .count = static_cast<std::size_t>(rows.count)}};
  }
  /// A sum stands in place of what was summed.
  [[nodiscard]] bool runs_in_place() const override { return problem_.kind == Kind::all_reduce; }

 private:
  /// Writes the given elements that this rank reads to its input.
  void fill(const testing::ChangingRows& rows) const {
    const ranks::Part read = problem_.read(group_);
    const std::int64_t begin = std::max(read.begin, rows.first);
    const std::int64_t end = std::min(read.begin + read.count, rows.first + rows.count);
    if (begin >= end) return;
    std::vector<float> values(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = begin; i < end; ++i) {
      values[static_cast<std::size_t>(i - begin)] = problem_.value(group_.rank(), i);
    }
    input_.upload_stored(values, static_cast<std::size_t>(begin - read.begin));
  }

  ranks::Communicator group_;
  Problem problem_;
  bench::Tensor<1> input_;
};

class Collective final : public bench::CollectiveOperator {
 public:
  explicit Collective(Kind kind) : kind_(kind) {}

  [[nodiscard]] std::string name() const override { return name_of(kind_); }
  [[nodiscard]] std::string summary() const override {
    switch (kind_) {
      case Kind::all_reduce: return "the sum over ranks, on each of them";
      case Kind::all_gather: return "the parts of all ranks, on each of them";
      case Kind::reduce_scatter: return "the sum over ranks, a part of it on each";
      case Kind::send_recv: break;
    }
    return "from each rank to the next";
  }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    constexpr double most = 1 << 30;  // MPI counts elements in int
    return {bench::integer_axis("message_size", 1 << 20, 4,
                                "bytes of all parts together, a multiple of 4", most)
                .also("bytes"),
            bench::ranks_axis()};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    return {{plain, "a plain call of MPI", true},
            {ours, "ranks::Communicator: sums in the order of the ranks, in f32"}};
  }
  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = ours} : config;
  }
  void validate(const Point& point) const override {
    if (const std::int64_t bytes = point.integer("message_size"); bytes % 4 != 0) {
      throw InputError("message_size " + std::to_string(bytes) + ": expected a multiple of 4");
    }
  }
  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& /*config*/) const override {
    const auto bytes = static_cast<std::size_t>(point.integer("message_size"));
    const std::size_t on_host = bytes / size_of(point.dtype) * sizeof(float);
    return {.tensors = bytes + on_host, .outputs = bytes, .workspace = bytes};
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case_on(const ranks::Communicator& group,
                                                          const Point& point) const override {
    return std::make_unique<Case>(group,
                                  Problem{.kind = kind_,
                                          .backend = point.backend,
                                          .threads = point.threads,
                                          .dtype = point.dtype,
                                          .total = point.integer("message_size") /
                                                   static_cast<std::int64_t>(size_of(point.dtype)),
                                          .seeds = {{0, point.seed}}});
  }

 private:
  Kind kind_;
};

}  // namespace

void register_op(bench::Registry& registry) {
  for (const Kind kind :
       {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter, Kind::send_recv}) {
    registry.add(std::make_unique<Collective>(kind));
  }
}

}  // namespace katt::collectives
