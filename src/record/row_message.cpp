#include "record/row_message.hpp"

#include <utility>

namespace katt::bench {
namespace {

using io::impl::MessageReader;
using io::impl::MessageWriter;

/// A list: its length, then each item by `add_one` or `take_one`.
template <class List, class F>
void add_list(MessageWriter& message, const List& list, const F& add_one) {
  message.add(std::uint64_t{list.size()});
  for (const auto& item : list) add_one(item);
}

template <class T, class F>
std::vector<T> take_list(MessageReader& message, const F& take_one) {
  std::vector<T> list;
  for (auto left = message.take<std::uint64_t>(); left > 0; --left) list.push_back(take_one());
  return list;
}

template <class T>
void add_numbers(MessageWriter& message, const std::vector<T>& numbers) {
  add_list(message, numbers, [&](T number) { message.add(number); });
}

template <class T>
std::vector<T> take_numbers(MessageReader& message) {
  return take_list<T>(message, [&] { return message.take<T>(); });
}

void add(MessageWriter& message, const Config& config) {
  message.add(config.variant);
  add_numbers(message, std::vector<int>(config.setting.begin(), config.setting.end()));
}

Config take_config(MessageReader& message) {
  Config config{.variant = message.text(), .setting = {}};
  for (const int value : take_numbers<int>(message)) config.setting.push_back(value);
  return config;
}

void add(MessageWriter& message, const Status& status) {
  message.add(status.code()).add(status.reason());
}

Status take_status(MessageReader& message) {
  const auto code = message.take<Status::Code>();
  std::string reason = message.text();
  switch (code) {
    case Status::Code::ok: return Status::ok();
    case Status::Code::skipped: return Status::skipped(std::move(reason));
    case Status::Code::failed: break;
  }
  return Status::failed(std::move(reason));
}

void add(MessageWriter& message, const Estimate& estimate) {
  message.add(estimate.median).add(estimate.lo).add(estimate.hi);
}

Estimate take_estimate(MessageReader& message) {
  // in the order of the braces, which is the order of evaluation
  return {
      .median = message.take<double>(), .lo = message.take<double>(), .hi = message.take<double>()};
}

void add(MessageWriter& message, const io::Profile& profile) {
  message.add(profile.runs).add(profile.time_s);
  add_list(message, profile.rows, [&](const io::ProfileRow& row) {
    message.add(row.name).add(row.depth).add(row.calls).add(row.time_s);
    message.add(row.flops).add(row.bytes).add(row.ceiling).add(row.ceiling_fraction);
  });
}

io::Profile take_profile(MessageReader& message) {
  io::Profile profile{
      .runs = message.take<std::int64_t>(), .time_s = message.take<double>(), .rows = {}};
  profile.rows = take_list<io::ProfileRow>(message, [&] {
    return io::ProfileRow{.name = message.text(),
                          .depth = message.take<std::int64_t>(),
                          .calls = message.take<double>(),
                          .time_s = message.take<double>(),
                          .flops = message.take<double>(),
                          .bytes = message.take<double>(),
                          .ceiling = message.text(),
                          .ceiling_fraction = message.take<double>()};
  });
  return profile;
}

}  // namespace

void add(MessageWriter& message, const RowResult& row) {
  add(message, row.requested);
  add(message, row.resolved);
  add(message, Config{.variant = "", .setting = row.default_setting});
  add(message, row.status);
  add_numbers(message, row.samples_s);
  message.add(row.inner).add(row.host_s);
  add(message, row.time_s);
  add(message, row.speedup);
  message.add(static_cast<std::uint8_t>(row.baseline)).add(row.engine);
  message.add(row.work.flops).add(row.work.bytes);
  message.add(row.work.compute_ceiling).add(row.work.traffic);
  message.add(row.ceiling.name).add(row.ceiling.fraction);
  message.add(static_cast<std::uint8_t>(row.ceiling.bandwidth));
  message.add(static_cast<std::uint8_t>(row.total.has_value()));
  const memory::Bytes total = row.total.value_or(memory::Bytes{});
  message.add(std::uint64_t{total.host}).add(std::uint64_t{total.device});
  message.add(std::uint64_t{row.tensor_bytes}).add(row.max_abs_err).add(row.mean_abs_err);
  add(message, row.profile);
}

RowResult take_row(MessageReader& message) {
  RowResult row;
  row.requested = take_config(message);
  row.resolved = take_config(message);
  row.default_setting = take_config(message).setting;
  row.status = take_status(message);
  row.samples_s = take_numbers<double>(message);
  row.inner = message.take<int>();
  row.host_s = message.take<double>();
  row.time_s = take_estimate(message);
  row.speedup = take_estimate(message);
  row.baseline = message.take<std::uint8_t>() != 0;
  row.engine = message.text();
  row.work.flops = message.take<double>();
  row.work.bytes = message.take<double>();
  row.work.compute_ceiling = message.text();
  row.work.traffic = message.text();
  row.ceiling.name = message.text();
  row.ceiling.fraction = message.take<double>();
  row.ceiling.bandwidth = message.take<std::uint8_t>() != 0;
  const bool has_total = message.take<std::uint8_t>() != 0;
  memory::Bytes total;
  total.host = message.take<std::uint64_t>();
  total.device = message.take<std::uint64_t>();
  if (has_total) row.total = total;
  row.tensor_bytes = message.take<std::uint64_t>();
  row.max_abs_err = message.take<double>();
  row.mean_abs_err = message.take<double>();
  row.profile = take_profile(message);
  return row;
}

void add(MessageWriter& message, const io::Attributes& attributes) {
  add_list(message, attributes, [&](const auto& attribute) {
    message.add(attribute.first).add(std::uint64_t{attribute.second.index()});
    std::visit([&](const auto& value) { message.add(value); }, attribute.second);
  });
}

io::Attributes take_attributes(MessageReader& message) {
  io::Attributes attributes;
  for (auto left = message.take<std::uint64_t>(); left > 0; --left) {
    std::string name = message.text();
    switch (message.take<std::uint64_t>()) {  // in the order of the alternatives of Attribute
      case 0: attributes.emplace_back(std::move(name), message.text()); break;
      case 1: attributes.emplace_back(std::move(name), message.take<std::int64_t>()); break;
      default: attributes.emplace_back(std::move(name), message.take<double>());
    }
  }
  return attributes;
}

void add(MessageWriter& message, const std::vector<io::CeilingRow>& ceilings) {
  add_list(message, ceilings, [&](const io::CeilingRow& row) {
    message.add(row.name).add(row.value).add(row.unit).add(row.threads).add(row.bytes);
  });
}

std::vector<io::CeilingRow> take_ceilings(MessageReader& message) {
  return take_list<io::CeilingRow>(message, [&] {
    return io::CeilingRow{.name = message.text(),
                          .value = message.take<double>(),
                          .unit = message.text(),
                          .threads = message.take<std::int64_t>(),
                          .bytes = message.take<std::int64_t>()};
  });
}

}  // namespace katt::bench
