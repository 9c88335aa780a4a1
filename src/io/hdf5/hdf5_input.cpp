#include "io/hdf5/hdf5_input.hpp"

#include <exception>

#include "core/error.hpp"
#include "io/message.hpp"

namespace katt::io::impl {

namespace {

/// The requests. answer_request() defines their arguments and answers.
enum class Verb : std::uint8_t {
  open,
  has,
  has_attribute,
  root_names,
  attribute,
  attributes_of,
  describe,
  count,
  read
};

/// A type as bytes. Only this process makes them, so the child can trust them.
std::string encoded(hid_t type) {
  std::size_t size = 0;
  if (type < 0 || H5Tencode(type, nullptr, &size) < 0) return {};
  std::string bytes(size, '\0');
  H5Tencode(type, bytes.data(), &size);
  return bytes;
}

Handle decoded(const std::string& bytes) {
  if (bytes.empty()) return {};
#if defined(H5Tdecode_vers)  // since HDF5 2.0
  return Handle(H5Tdecode2(bytes.data(), bytes.size()));
#else
  return Handle(H5Tdecode(bytes.data()));
#endif
}

void add(MessageWriter& answer, const std::optional<Scalar>& value) {
  answer.add(static_cast<std::uint64_t>(value ? value->index() + 1 : 0));
  if (value) std::visit([&](const auto& held) { answer.add(held); }, *value);
}

std::optional<Scalar> take_scalar(MessageReader& answer) {
  switch (answer.take<std::uint64_t>()) {
    case 0: return std::nullopt;
    case 1: return answer.take<std::int64_t>();
    case 2: return answer.take<double>();
    default: return answer.text();
  }
}

void add(MessageWriter& answer, const DatasetInfo& info) {
  answer.add(std::uint64_t{info.shape.size()});
  for (const std::int64_t extent : info.shape) answer.add(extent);
  answer.add(info.kind).add(info.type).add(std::uint64_t{info.columns.size()});
  for (const ColumnInfo& column : info.columns) {
    answer.add(column.name).add(column.type);
    answer.add(static_cast<std::uint8_t>(column.is_expected));
    answer.add(static_cast<std::uint8_t>(column.is_int64));
  }
}

DatasetInfo take_info(MessageReader& answer) {
  DatasetInfo info;
  for (auto rank = answer.take<std::uint64_t>(); rank > 0; --rank) {
    info.shape.push_back(answer.take<std::int64_t>());
  }
  info.kind = answer.take<ElementKind>();
  info.type = answer.text();
  for (auto columns = answer.take<std::uint64_t>(); columns > 0; --columns) {
    ColumnInfo column{.name = answer.text(), .type = answer.text()};
    column.is_expected = answer.take<std::uint8_t>() != 0;
    column.is_int64 = answer.take<std::uint8_t>() != 0;
    info.columns.push_back(std::move(column));
  }
  return info;
}

void add(MessageWriter& answer, const std::vector<std::string>& names) {
  answer.add(std::uint64_t{names.size()});
  for (const std::string& name : names) answer.add(name);
}

std::vector<std::string> take_names(MessageReader& answer) {
  std::vector<std::string> names;
  for (auto left = answer.take<std::uint64_t>(); left > 0; --left) names.push_back(answer.text());
  return names;
}

bool take_truth(MessageReader& answer) { return answer.take<std::uint8_t>() != 0; }

/// Runs in the child.
void answer_request(std::shared_ptr<Hdf5Reader>& file, const std::filesystem::path& path,
                    std::string_view message, Reply& reply) {
  MessageReader request(message);
  const auto verb = request.take<Verb>();
  const std::string name = request.text();
  MessageWriter answer;
  switch (verb) {
    case Verb::open: file = std::make_shared<Hdf5Reader>(path); return;
    case Verb::has: answer.add(static_cast<std::uint8_t>(file->has(name))); break;
    case Verb::has_attribute:
      answer.add(static_cast<std::uint8_t>(file->has_attribute(name)));
      break;
    case Verb::root_names: {
      const RootNames names = file->root_names();
      add(answer, names.links);
      add(answer, names.attributes);
      break;
    }
    case Verb::attribute: add(answer, file->attribute(name)); break;
    case Verb::attributes_of: {
      const ScalarMap values = file->attributes_of(name, request.text());
      answer.add(std::uint64_t{values.size()});
      for (const auto& [key, value] : values) {
        answer.add(key);
        add(answer, value);
      }
      break;
    }
    case Verb::describe: {
      const std::string expected = request.text();
      add(answer, file->describe(name, expected, decoded(request.text())));
      break;
    }
    case Verb::count:
      answer.add(std::uint64_t{file->readable_count(name, request.take<std::uint64_t>())});
      break;
    case Verb::read: file->read(name, decoded(request.text()), reply); return;
  }
  reply.send(answer.bytes());
}

MessageWriter request(Verb verb, std::string_view name) {
  MessageWriter message;
  message.add(verb).add(name);
  return message;
}

}  // namespace

template <class Function>
auto Hdf5Input::guard(std::string_view object, const Function& function) const {
  const std::string start = "is a damaged HDF5 file: reading " + std::string(object) + " ";
  try {
    return function();
  } catch (const InputError&) {
    throw;
  } catch (const ChildGone& gone) {
    reject(start + gone.what());
  } catch (const std::exception& error) {
    // nonsense instead of an answer, or a size that made the child run out of memory
    reject(start + "fails: " + error.what());
  }
}

Hdf5Input::Hdf5Input(std::filesystem::path path)
    : NamedFile(std::move(path)),
      child_(std::make_unique<ChildProcess>(
          [path = this->path(), file = std::shared_ptr<Hdf5Reader>()](std::string_view message,
                                                                      Reply& reply) mutable {
            answer_request(file, path, message, reply);
          })) {
  silence_errors();
  guard("it", [&] { return child_->ask(request(Verb::open, "").bytes()); });
}

Hdf5Input::~Hdf5Input() = default;

template <class Take>
auto Hdf5Input::ask(const MessageWriter& request, std::string_view object, const Take& take) const {
  return guard(object, [&] {
    const std::string answer = child_->ask(request.bytes());
    MessageReader reader(answer);
    return take(reader);
  });
}

bool Hdf5Input::has(std::string_view name) const {
  return ask(request(Verb::has, name), name, take_truth);
}

bool Hdf5Input::has_attribute(std::string_view name) const {
  return ask(request(Verb::has_attribute, name), name, take_truth);
}

RootNames Hdf5Input::root_names() const {
  return ask(request(Verb::root_names, ""), "its root", [](MessageReader& answer) {
    auto links = take_names(answer);
    return RootNames{std::move(links), take_names(answer)};
  });
}

std::optional<Scalar> Hdf5Input::attribute(std::string_view name) const {
  return ask(request(Verb::attribute, name), name, take_scalar);
}

ScalarMap Hdf5Input::attributes_of(std::string_view name, const std::string& expected) const {
  return ask(request(Verb::attributes_of, name).add(expected), name, [](MessageReader& answer) {
    ScalarMap values;
    for (auto left = answer.take<std::uint64_t>(); left > 0; --left) {
      std::string key = answer.text();
      if (auto value = take_scalar(answer)) values.emplace(std::move(key), std::move(*value));
    }
    return values;
  });
}

DatasetInfo Hdf5Input::describe(std::string_view name, const std::string& expected,
                                const Handle& table) const {
  return ask(request(Verb::describe, name).add(expected).add(encoded(table.get())), name,
             take_info);
}

std::size_t Hdf5Input::readable_count(std::string_view name, const DatasetInfo& info,
                                      std::size_t memory_bytes) const {
  const std::size_t count = ask(request(Verb::count, name).add(std::uint64_t{memory_bytes}), name,
                                [](MessageReader& answer) { return answer.take<std::uint64_t>(); });
  std::size_t product = 1;
  for (const std::int64_t extent : info.shape) product *= static_cast<std::size_t>(extent);
  // our callers index by the shape, so this process checks it as well
  if (product != count) reject_dataset(name, "is damaged: its shape changes while it is read");
  return count;
}

void Hdf5Input::read(std::string_view name, hid_t memory_type, std::span<std::byte> out) const {
  const MessageWriter message = request(Verb::read, name).add(encoded(memory_type));
  guard(name, [&] { child_->ask(message.bytes(), out); });
}

}  // namespace katt::io::impl
