#include "record/row_message.hpp"

#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace katt::bench {
namespace {

using io::impl::MessageReader;
using io::impl::MessageWriter;

/// References to all members of a struct. A member that is added to it does not compile until it is named here.
template <class T>
auto members(T& of) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, RowResult>) {
    auto& [requested, resolved, default_setting, status, samples_s, inner, host_s, sm_clock_hz,
           claimed_s, time_s, speedup, paired, baseline, engine, work, ceiling, total, tensor_bytes,
           max_abs_err, mean_abs_err, worst_abs_err, profile, exchange, note, left_race, effort,
           speedup_cycles, lacked_memory, suspicion] = of;
    return std::tie(requested, resolved, default_setting, status, samples_s, inner, host_s,
                    sm_clock_hz, claimed_s, time_s, speedup, paired, baseline, engine, work,
                    ceiling, total, tensor_bytes, max_abs_err, mean_abs_err, worst_abs_err, profile,
                    exchange, note, left_race, effort, speedup_cycles, lacked_memory, suspicion);
  } else if constexpr (std::is_same_v<Plain, Exchange>) {
    auto& [bus, sent, messages, communication, overlap, idle] = of;
    return std::tie(bus, sent, messages, communication, overlap, idle);
  } else if constexpr (std::is_same_v<Plain, Effort>) {
    auto& [cycles, ghz, instructions, llc_misses, joules, throttled] = of;
    return std::tie(cycles, ghz, instructions, llc_misses, joules, throttled);
  } else if constexpr (std::is_same_v<Plain, io::ProfileRow>) {
    auto& [name, depth, calls, time_s, flops, bytes, ceiling, fraction] = of;
    return std::tie(name, depth, calls, time_s, flops, bytes, ceiling, fraction);
  } else if constexpr (std::is_same_v<Plain, io::CeilingRow>) {
    auto& [name, value, unit, threads, bytes] = of;
    return std::tie(name, value, unit, threads, bytes);
  } else if constexpr (std::is_same_v<Plain, Work>) {
    auto& [flops, bytes, compute_ceiling, traffic] = of;
    return std::tie(flops, bytes, compute_ceiling, traffic);
  } else if constexpr (std::is_same_v<Plain, Estimate> || std::is_same_v<Plain, NearestCeiling> ||
                       std::is_same_v<Plain, io::Profile>) {
    auto& [a, b, c] = of;
    return std::tie(a, b, c);
  } else {  // Config, memory::Bytes, an attribute
    auto& [a, b] = of;
    return std::tie(a, b);
  }
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

}  // namespace

template <class T>
void add(MessageWriter& message, const T& value) {
  if constexpr (Number<T> || std::is_same_v<T, std::string>) {
    message.add(value);
  } else if constexpr (IsVector<T>::value) {
    message.add(std::uint64_t{value.size()});
    for (const auto& item : value) add(message, item);
  } else if constexpr (IsOptional<T>::value) {
    message.add(value.has_value());
    if (value) add(message, *value);
  } else if constexpr (std::is_same_v<T, io::Attribute>) {
    message.add(std::uint64_t{value.index()});
    std::visit([&](const auto& held) { message.add(held); }, value);
  } else if constexpr (std::is_same_v<T, Status>) {
    message.add(value.code()).add(value.reason());
  } else {
    std::apply([&](const auto&... member) { (add(message, member), ...); }, members(value));
  }
}

template <class T>
T take(MessageReader& message) {
  T value{};
  if constexpr (Number<T>) {
    value = message.take<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = message.text();
  } else if constexpr (IsVector<T>::value) {
    for (auto left = message.take<std::uint64_t>(); left > 0; --left) {
      value.push_back(take<typename T::value_type>(message));
    }
  } else if constexpr (IsOptional<T>::value) {
    if (message.take<bool>()) value = take<typename T::value_type>(message);
  } else if constexpr (std::is_same_v<T, io::Attribute>) {
    switch (message.take<std::uint64_t>()) {  // in the order of the alternatives of Attribute
      case 0: value = message.text(); break;
      case 1: value = message.take<std::int64_t>(); break;
      default: value = message.take<double>();
    }
  } else if constexpr (std::is_same_v<T, Status>) {
    const auto code = message.take<Status::Code>();
    std::string reason = message.text();
    if (code == Status::Code::skipped) value = Status::skipped(std::move(reason));
    if (code == Status::Code::failed) value = Status::failed(std::move(reason));
  } else {
    std::apply(
        [&](auto&... member) { ((member = take<std::decay_t<decltype(member)>>(message)), ...); },
        members(value));
  }
  return value;
}

#define KATT_INSTANTIATE_MESSAGE(...)                    \
  template void add(MessageWriter&, const __VA_ARGS__&); \
  template __VA_ARGS__ take<__VA_ARGS__>(MessageReader&);

KATT_INSTANTIATE_MESSAGE(std::vector<RowResult>)
KATT_INSTANTIATE_MESSAGE(io::Attributes)
KATT_INSTANTIATE_MESSAGE(std::vector<io::CeilingRow>)
KATT_INSTANTIATE_MESSAGE(std::vector<std::uint64_t>)

}  // namespace katt::bench
