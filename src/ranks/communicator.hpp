#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/check.hpp"
#include "core/tensor.hpp"

/// Several ranks over MPI. A build without MPI, and a program that no MPI launcher started, has one.
namespace katt::ranks {

/// A message failed: MPI's reason in one line, "rank 1 of 4 on HOST: all_reduce: …". The ranks can
/// then no longer work together, and the job should end.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A range of elements.
struct Part {
  std::int64_t begin = 0, count = 0;  ///< first element, and how many
};

/// The part of n elements that belongs to `rank`: ⌈n / ranks⌉ each, the last parts shorter or
/// empty.
[[nodiscard]] Part part_of(std::int64_t n, int ranks, int rank);

/// Bytes of host memory that all_reduce() and reduce_scatter() of n elements take while they run,
/// beside staging.
[[nodiscard]] std::size_t summing_bytes(std::int64_t n, Dtype dtype, int ranks);

namespace impl {
class Link;

/// A running operation.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Advances as far as messages have come, or waits until the end. Returns true at the end.
  virtual bool advance(bool to_the_end) = 0;
};

/// All elements of a dense tensor.
struct Elements {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t count = 0;
};

template <int Rank, bool Const>
Elements elements_of(const char* op, const BasicTensorRef<Rank, Const>& tensor) {
  std::int64_t step = 1;
  for (int axis = Rank - 1; axis >= 0; --axis) {
    if (tensor.extent[axis] > 1 && tensor.stride[axis] != step) {
      throw InputError(std::string(op) + ": tensor " + shape_text(tensor.extent) + ": axis " +
                       std::to_string(axis) + " has stride " + std::to_string(tensor.stride[axis]) +
                       ", expected " + std::to_string(step) + ": a dense tensor");
    }
    step *= tensor.extent[axis];
  }
  // Operations do not write the tensors that they send; one type for both keeps the operations few.
  return {const_cast<void*>(static_cast<const void*>(tensor.data)), tensor.dtype, tensor.size()};
}

}  // namespace impl

/// An operation that was started. Until wait() returns, its tensors must stay in place, and nobody
/// may change the ones that it reads or touch the ones that it writes. Every wait() advances the
/// messages of all operations, advance() those of one; ranks may wait in different orders.
class [[nodiscard]] Request {
 public:
  Request();  ///< an operation that is done
  /// An operation that has begun.
  explicit Request(std::unique_ptr<impl::Operation> operation);
  /// Takes the operation of the other request, which is done then.
  Request(Request&& other) noexcept;
  /// Waits for its own operation and takes that of the other request.
  Request& operator=(Request&& other) noexcept;
  /// Waits, unless an exception is unwinding: then the job ends anyway.
  ~Request();

  /// Advances without waiting; returns true when the operation is done. Throws Error.
  bool advance();
  /// Waits until the operation is done. Throws Error.
  void wait();

 private:
  void end();
  std::unique_ptr<impl::Operation> operation_;
};

/// A text or bytes from another rank.
struct Message {
  int source = 0;                ///< rank that sent it
  std::vector<std::byte> bytes;  ///< what it sent
};

/// A group of ranks that pass messages to each other. Copies are the same group.
///
/// Operations on tensors take dense ones in the memory of the execution space, of f32, f16 or bf16,
/// with the same extents on every rank; they first wait for all work of the instance. All ranks of
/// the group call them in the same order; several operations may run at once. Device memory is
/// staged through pinned host memory. Throws InputError when a tensor is not dense or sizes do not
/// fit together, and Error when MPI fails or another rank sent another size. When a rank dies, the
/// launcher names it and ends the job.
///
/// Sums run in the order of the ranks, x₀ + x₁ + …, in f32, with one rounding to the dtype: the
/// bits are the same on every rank and in every run, and depend on the number of ranks.
class Communicator {
 public:
  /// This process alone.
  Communicator();
  /// The group of a link; Katt itself makes links.
  explicit Communicator(std::shared_ptr<impl::Link> link);

  [[nodiscard]] int rank() const;  ///< this rank within the group, from 0
  [[nodiscard]] int size() const;  ///< ranks of the group
  /// Ranks of the group that run on this host.
  [[nodiscard]] int ranks_on_host() const;
  /// "rank 1 of 4 on HOST", among all ranks of the program.
  [[nodiscard]] const std::string& where() const;

  /// The ranks of the same color, ordered by key, then by rank. All ranks call it.
  [[nodiscard]] Communicator split(int color, int key) const;

  /// Returns when all ranks of the group have called it. Throws Error.
  void barrier() const;

  /// values ← Σ over ranks of values.
  template <class Exec, int Rank>
  Request all_reduce(const Exec& exec, const TensorRef<Rank>& values) const {
    return start_all_reduce(exec, impl::elements_of("all_reduce", values));
  }

  /// part ← this rank's part_of(values.size()) of Σ over ranks of values. `part` may be the same
  /// place in `values`.
  template <class Exec, int Rank, bool Const, int PartRank>
  Request reduce_scatter(const Exec& exec, const BasicTensorRef<Rank, Const>& values,
                         const TensorRef<PartRank>& part) const {
    return start_reduce_scatter(exec, impl::elements_of("reduce_scatter", values),
                                impl::elements_of("reduce_scatter", part));
  }

  /// values ← the parts of all ranks, part_of(values.size()) each, in the order of the ranks. `part`
  /// may be its own place in `values`.
  template <class Exec, int PartRank, bool Const, int Rank>
  Request all_gather(const Exec& exec, const BasicTensorRef<PartRank, Const>& part,
                     const TensorRef<Rank>& values) const {
    return start_all_gather(exec, impl::elements_of("all_gather", part),
                            impl::elements_of("all_gather", values));
  }

  /// The r-th of size() equal parts of `from` goes to rank r; the r-th of `to` came from rank r.
  /// Throws InputError when size() does not divide the elements.
  template <class Exec, int Rank, bool Const, int OtherRank>
  Request all_to_all(const Exec& exec, const BasicTensorRef<Rank, Const>& from,
                     const TensorRef<OtherRank>& to) const {
    return start_all_to_all(exec, impl::elements_of("all_to_all", from),
                            impl::elements_of("all_to_all", to));
  }

  /// values ← the values of rank root.
  template <class Exec, int Rank>
  Request broadcast(const Exec& exec, const TensorRef<Rank>& values, int root) const {
    return start_broadcast(exec, impl::elements_of("broadcast", values), root);
  }

  /// Sends values to one rank; between two ranks messages keep their order.
  template <class Exec, int Rank, bool Const>
  Request send(const Exec& exec, const BasicTensorRef<Rank, Const>& values, int to) const {
    return start_send(exec, impl::elements_of("send", values), to);
  }
  /// values ← what rank `from` sends.
  template <class Exec, int Rank>
  Request recv(const Exec& exec, const TensorRef<Rank>& values, int from) const {
    return start_recv(exec, impl::elements_of("recv", values), from);
  }

  /// The values of all ranks in their order.
  [[nodiscard]] std::vector<double> gather(double value) const;
  /// Σ over ranks, in the order of the ranks: the same bits on every rank.
  [[nodiscard]] double sum(double value) const;
  /// The text of rank root on every rank.
  [[nodiscard]] std::string broadcast_text(const std::string& text, int root) const;

  /// Sends bytes to one rank; returns when they may change. They travel apart from tensors and keep
  /// their order.
  void send_message(std::span<const std::byte> bytes, int to) const;
  /// Waits for the next message of any rank and returns it.
  [[nodiscard]] Message receive_message() const;
  /// True when a message has come.
  [[nodiscard]] bool has_message() const;

 private:
  template <class Exec>
  Request start_all_reduce(const Exec& exec, impl::Elements values) const;
  template <class Exec>
  Request start_reduce_scatter(const Exec& exec, impl::Elements values, impl::Elements part) const;
  template <class Exec>
  Request start_all_gather(const Exec& exec, impl::Elements part, impl::Elements values) const;
  template <class Exec>
  Request start_all_to_all(const Exec& exec, impl::Elements from, impl::Elements to) const;
  template <class Exec>
  Request start_broadcast(const Exec& exec, impl::Elements values, int root) const;
  template <class Exec>
  Request start_send(const Exec& exec, impl::Elements values, int to) const;
  template <class Exec>
  Request start_recv(const Exec& exec, impl::Elements values, int from) const;

  std::shared_ptr<impl::Link> link_;
};

/// All ranks of the program while an Environment (ranks/environment.hpp) lives; otherwise this
/// process alone.
[[nodiscard]] Communicator world();

}  // namespace katt::ranks
