#include "plan/toml_document.hpp"

#include <toml++/toml.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"

namespace katt::bench {
namespace {

int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

class TomlReader {
 public:
  explicit TomlReader(const std::string& name) : name_(name) {}

  TomlDocument read(const toml::table& root) const {
    TomlDocument document;
    document.top.line = 1;
    for (const auto& [key, node] : root) {
      if (key.str() == "sweep") {
        document.sweeps = sweeps(node);
      } else if (key.str() == "axes") {
        if (!node.is_table()) fail(line_of(node), "axes: expected a table [axes]");
        document.axes = table(*node.as_table());
      } else if (const bool many = node.is_array_of_tables(); many || node.is_table()) {
        static const std::vector<std::string> known{"sweep", "axes"};
        const auto near = nearest(key.str(), known);
        const std::string name = io::impl::printable(key.str());
        fail(line_of(node), "the table " + (many ? "[[" + name + "]]" : "[" + name + "]") +
                                " is unknown" +
                                (near.empty()              ? ""
                                 : near.front() == "sweep" ? "; did you mean [[sweep]]?"
                                                           : "; did you mean [axes]?"));
      } else {
        document.top.keys.push_back(key_of(std::string(key.str()), node));
      }
    }
    return document;
  }

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InputError(name_ + ":" + std::to_string(line) + ": " + message);
  }

 private:
  std::vector<TomlTable> sweeps(const toml::node& node) const {
    std::vector<TomlTable> tables;
    if (const auto* one = node.as_table()) {
      tables.push_back(table(*one));
    } else if (const auto* list = node.as_array()) {
      for (const toml::node& item : *list) {
        if (!item.is_table()) fail(line_of(node), "sweep: expected tables, [[sweep]]");
        tables.push_back(table(*item.as_table()));
      }
    }
    if (tables.empty()) {
      fail(line_of(node), "sweep: expected a table [sweep] or tables [[sweep]]");
    }
    return tables;
  }

  TomlTable table(const toml::table& node) const {
    TomlTable result{.line = line_of(node), .keys = {}};
    for (const auto& [key, value] : node) {
      result.keys.push_back(key_of(std::string(key.str()), value));
    }
    return result;
  }

  TomlKey key_of(const std::string& name, const toml::node& node) const {
    return {.name = name,
            .text = text_of(name, node),
            .is_string = node.is_string(),
            .line = line_of(node)};
  }

  std::string text_of(const std::string& name, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
    if (const auto* real = node.as_floating_point()) return to_text(real->get());
    if (const auto* truth = node.as_boolean()) return truth->get() ? "1" : "0";
    const toml::array* list = node.as_array();
    if (list == nullptr) {
      fail(line_of(node), "key \"" + io::impl::printable(name) +
                              "\": expected an integer, a number, true or false, a string, or an "
                              "array");
    }
    std::vector<std::string> items;
    for (const toml::node& item : *list) {
      if (item.is_array()) {
        fail(line_of(node),
             "key \"" + io::impl::printable(name) + "\": expected an array without arrays in it");
      }
      items.push_back(text_of(name, item));
    }
    return join(items, ",");
  }

  const std::string& name_;
};

}  // namespace

const TomlKey* TomlTable::find(const std::string& name) const {
  for (const TomlKey& key : keys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

TomlDocument parse_toml(const std::string& name, const std::string& text) {
  const TomlReader reader(name);
  try {
    return reader.read(toml::parse(text));
  } catch (const toml::parse_error& error) {
    reader.fail(static_cast<int>(error.source().begin.line),
                "not valid TOML: " + io::impl::printable(error.description()));
  }
}

}  // namespace katt::bench
