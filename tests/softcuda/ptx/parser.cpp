#include <cctype>
#include <charconv>
#include <cstring>

#include "tests/softcuda/ptx/ptx.hpp"

// The text of PTX becomes modules, functions and statements.

namespace softcuda {

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

std::vector<std::string_view> split_operands(std::string_view s) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= s.size(); ++i) {
    if (i < s.size() && std::strchr("{[(", s[i])) ++depth;
    if (i < s.size() && std::strchr("}])", s[i])) --depth;
    if (i < s.size() && (s[i] != ',' || depth > 0)) continue;
    const auto part = trim(s.substr(start, i - start));
    if (!part.empty()) parts.push_back(part);
    start = i + 1;
  }
  return parts;
}

std::vector<std::string_view> split(std::string_view s, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0;;) {
    const auto end = s.find(at, start);
    parts.push_back(s.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::int64_t parse_integer(std::string_view s) {
  s = trim(s);
  const bool negative = !s.empty() && s.front() == '-';
  if (negative) s.remove_prefix(1);
  int radix = 10;
  if (s.size() > 1 && s[0] == '0') {
    if (s[1] == 'x' || s[1] == 'X') radix = 16, s.remove_prefix(2);
    else if (s[1] == 'b' || s[1] == 'B') radix = 2, s.remove_prefix(2);
    else radix = 8;
  }
  if (!s.empty() && s.back() == 'U') s.remove_suffix(1);
  std::uint64_t value = 0;
  const auto result = std::from_chars(s.data(), s.data() + s.size(), value, radix);
  if (result.ec != std::errc() || result.ptr != s.data() + s.size())
    throw DeviceFault(719, "PTX: not an integer: " + std::string(s));
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

Type parse_type(std::string_view name) {
  if (name == "pred") return {Kind::pred, 4};
  if (name == "f16x2") return {Kind::real, 4, 2};
  if (name == "bf16x2") return {Kind::bf16, 4, 2};
  if (name == "bf16") return {Kind::bf16, 2};
  if (name.size() < 2) return {};
  const auto digits = name.substr(1);
  const int bits = digits == "8"    ? 8
                   : digits == "16" ? 16
                   : digits == "32" ? 32
                   : digits == "64" ? 64
                                    : 0;
  if (bits == 0) return {};
  switch (name[0]) {
    case 'b': return {Kind::bits, bits / 8};
    case 'u': return {Kind::uint, bits / 8};
    case 's': return {Kind::sint, bits / 8};
    case 'f': return {Kind::real, bits / 8};
    default: return {};
  }
}

Declaration parse_declaration(std::string_view text) {
  Declaration d;
  if (const auto equals = text.find('='); equals != std::string_view::npos) {
    d.initialiser = trim(text.substr(equals + 1));
    text = text.substr(0, equals);
  }
  text = trim(text);
  bool explicit_align = false;
  while (!text.empty() && text.front() == '.') {
    const auto end = text.find_first_of(" \t\n\r.", 1);
    const auto word = text.substr(1, end - 1);
    text = trim(text.substr(std::min(end, text.size())));
    if (word == "align") {
      std::size_t used = 0;
      while (used < text.size() && std::isdigit(static_cast<unsigned char>(text[used]))) ++used;
      d.align = static_cast<std::size_t>(parse_integer(text.substr(0, used)));
      explicit_align = true;
      text = trim(text.substr(used));
    } else if (word == "extern") {
      d.external = true;
    } else if (const Type type = parse_type(word); type.kind != Kind::none) {
      d.type = type;
    } else if (word == "reg" || word == "param" || word == "local" || word == "shared" ||
               word == "global" || word == "const") {
      d.space = word;
    }  // .visible, .weak, .ptr …: of no consequence
  }
  if (!explicit_align) d.align = static_cast<std::size_t>(std::max(1, d.type.bytes));
  const auto end = text.find_first_of("[<");
  d.name = trim(text.substr(0, end));
  if (end == std::string_view::npos) return d;
  d.ranged = text[end] == '<';
  d.array = !d.ranged;
  const auto close = text.find_first_of("]>", end);
  const auto count = trim(text.substr(end + 1, close - end - 1));
  d.elements = count.empty() ? 0 : static_cast<std::size_t>(parse_integer(count));
  return d;
}

namespace {

/// A place in PTX text that knows its line and steps over comments.
struct Cursor {
  std::string_view text;
  std::size_t at = 0;
  int line = 1;

  bool done() const { return at >= text.size(); }
  char now() const { return text[at]; }
  void step() {
    if (text[at++] == '\n') ++line;
  }
  void to(std::size_t end) {
    while (at < end && !done()) step();
  }
  void skip_line() {
    while (!done() && now() != '\n') step();
  }
  void skip_space() {
    while (!done()) {
      if (std::isspace(static_cast<unsigned char>(now()))) step();
      else if (text.substr(at, 2) == "//") skip_line();
      else if (text.substr(at, 2) == "/*") to(std::min(text.size(), text.find("*/", at) + 2));
      else return;
    }
  }
  /// The text of `{ … }` that starts here, without the braces.
  std::string_view braces() {
    const std::size_t start = at + 1;
    int depth = 0;
    for (; !done(); step()) {
      if (now() == '{') ++depth;
      if (now() == '}' && --depth == 0) break;
    }
    const auto inside = text.substr(start, at - start);
    if (!done()) step();
    return inside;
  }
  bool starts(std::string_view word) const { return text.substr(at, word.size()) == word; }
};

/// A guard, an opcode, operands.
Statement parse_statement(std::string_view text, int line, int scope) {
  Statement s;
  s.line = line;
  s.scope = scope;
  if (text.front() == '@') {
    auto end = text.find_first_of(" \t\n");
    s.guard = text.substr(1, end - 1);
    text = trim(text.substr(end));
    s.negated = s.guard.front() == '!';
    if (s.negated) s.guard.remove_prefix(1);
  }
  const auto end = text.find_first_of(" \t\n\r");
  s.opcode = text.substr(0, end);
  if (end != std::string_view::npos) s.operands = split_operands(text.substr(end));
  return s;
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

/// Length of `name:` at the start of text, without the colon; 0: no label.
std::size_t label_length(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && is_name(text[n])) ++n;
  return n > 0 && n < text.size() && text[n] == ':' ? n : 0;
}

/// The product of the numbers that follow a directive on its line, as in `.maxntid 128, 1, 1`.
int product_of(std::string_view header, std::string_view directive, int otherwise) {
  const auto at = header.find(directive);
  if (at == std::string_view::npos) return otherwise;
  const auto begin = at + directive.size(), end = header.find('\n', at);
  int product = 1;
  for (const auto part : split(header.substr(begin, end - begin), ',')) {
    if (!trim(part).empty()) product *= static_cast<int>(parse_integer(part));
  }
  return product;
}

void parse_function(Module& m, Cursor& c) {
  Function f;
  const auto header_end = c.text.find_first_of("{;", c.at);
  std::string_view header = c.text.substr(c.at, header_end - c.at);
  const bool prototype = header_end == std::string_view::npos || c.text[header_end] == ';';
  f.entry = header.find(".entry") != std::string_view::npos;
  std::string_view rest =
      trim(header.substr(header.find(f.entry ? ".entry" : ".func") + (f.entry ? 6 : 5)));
  const auto list = [](std::string_view inside) {
    std::vector<Declaration> all;
    for (const auto part : split_operands(inside)) all.push_back(parse_declaration(part));
    return all;
  };
  if (!rest.empty() && rest.front() == '(') {
    f.results = list(rest.substr(1, rest.find(')') - 1));
    rest = trim(rest.substr(rest.find(')') + 1));
  }
  const auto open = rest.find('(');
  f.name = trim(rest.substr(0, std::min(open, rest.find('\n'))));
  if (open != std::string_view::npos) {
    const auto close = rest.find(')', open);
    f.name = trim(rest.substr(0, open));
    f.parameters = list(rest.substr(open + 1, close - open - 1));
    rest = rest.substr(close);
  }
  f.info.max_threads = product_of(rest, ".maxntid", 1024);
  f.cluster = product_of(rest, ".reqnctapercluster", 1);
  c.to(header_end);
  if (prototype) {
    if (!c.done()) c.step();
    m.functions.try_emplace(f.name, f);
    return;
  }
  f.body_line = c.line;
  f.body = c.braces();
  m.functions[f.name] = std::move(f);
}

/// Adds what a statement of a body declares: `.reg .u32 a, b, c` is three registers.
void declare(std::string_view statement, std::vector<Declaration>& declarations) {
  Declaration d = parse_declaration(statement);
  const auto names = split_operands(statement);
  if (d.space != "reg" || names.size() == 1) {
    declarations.push_back(d);
    return;
  }
  for (const auto name : names) {
    d.name = trim(name.substr(name.find_last_of(" \t") + 1));
    declarations.push_back(d);
  }
}

void initialise(Module& m, const Declaration& d, std::byte* at) {
  std::memset(at, 0, std::max<std::size_t>(1, d.bytes()));
  if (d.initialiser.empty()) return;
  std::string_view list = d.initialiser;
  if (list.front() == '{') list = list.substr(1, list.rfind('}') - 1);
  std::size_t index = 0;
  for (auto item : split_operands(list)) {
    std::uint64_t value = 0;
    if (item.size() > 2 && item[0] == '0' &&
        (item[1] == 'f' || item[1] == 'F' || item[1] == 'd' || item[1] == 'D'))
      std::from_chars(item.data() + 2, item.data() + item.size(), value, 16);
    else if (const auto named = m.variables.find(item); named != m.variables.end())
      value = named->second.address;
    else value = static_cast<std::uint64_t>(parse_integer(item));
    std::memcpy(at + index++ * static_cast<std::size_t>(d.type.bytes), &value,
                static_cast<std::size_t>(d.type.bytes));
  }
}

void parse_variable(Module& m, std::string_view text) {
  const Declaration d = parse_declaration(text);
  if (d.space == "shared") {
    m.shared.push_back(d);
  } else if (d.space == "global" || d.space == "const") {
    if (d.external) return;
    const std::uint64_t address = device_malloc(std::max<std::size_t>(1, d.bytes()));
    if (address == 0) throw DeviceFault(2, "PTX: no memory for variable " + std::string(d.name));
    initialise(m, d, static_cast<std::byte*>(reach(address, d.bytes())));
    m.variables[d.name] = {address, d.bytes()};
  } else {
    throw DeviceFault(719, "PTX: not understood: " + std::string(text.substr(0, 80)));
  }
}

}  // namespace

void parse_module(Module& m) {
  Cursor c{m.text};
  for (c.skip_space(); !c.done(); c.skip_space()) {
    if (c.starts(".version") || c.starts(".target") || c.starts(".address_size") ||
        c.starts(".file") || c.starts(".loc ") || c.starts(".loc\t") || c.now() == '\0') {
      c.now() == '\0' ? c.step() : c.skip_line();
      continue;
    }
    if (c.starts(".section")) {
      c.to(c.text.find('{', c.at));
      c.braces();
      continue;
    }
    if (c.now() != '.')
      throw DeviceFault(719, "PTX line " + std::to_string(c.line) + ": not understood");
    const auto end = c.text.find_first_of(";{(", c.at);
    const auto head = c.text.substr(c.at, end - c.at);
    if (head.find(".entry") != std::string_view::npos ||
        head.find(".func") != std::string_view::npos) {
      parse_function(m, c);
      continue;
    }
    const auto semicolon = c.text.find(';', c.at);
    parse_variable(m, c.text.substr(c.at, semicolon - c.at));
    c.to(semicolon + 1);
  }
}

Body parse_body(std::string_view text, int first_line) {
  Body body;
  body.scopes.push_back({});
  int scope = 0;
  Cursor c{text, 0, first_line};
  for (c.skip_space(); !c.done(); c.skip_space()) {
    if (c.now() == '{') {
      body.scopes.push_back({scope, {}, {}});
      scope = static_cast<int>(body.scopes.size()) - 1;
      c.step();
    } else if (c.now() == '}') {
      scope = body.scopes[static_cast<std::size_t>(scope)].parent;
      c.step();
    } else if (c.now() == ';') {
      c.step();
    } else if (c.starts(".loc ") || c.starts(".loc\t") || c.starts(".file")) {
      c.skip_line();
    } else if (const std::size_t n = label_length(c.text.substr(c.at, 256)); n > 0) {
      body.scopes[static_cast<std::size_t>(scope)].labels[c.text.substr(c.at, n)] =
          body.statements.size();
      c.to(c.at + n + 1);
    } else {
      const auto end = c.text.find(';', c.at);
      const auto statement = trim(c.text.substr(c.at, end - c.at));
      const int line = c.line;
      c.to(end + 1);
      if (statement.front() != '.') {
        body.statements.push_back(parse_statement(statement, line, scope));
      } else if (statement.substr(0, 7) != ".pragma") {
        declare(statement, body.scopes[static_cast<std::size_t>(scope)].declarations);
      }
    }
  }
  return body;
}

}  // namespace softcuda
