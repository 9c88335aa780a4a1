#include "op/variants.hpp"

#include <algorithm>
#include <span>

namespace katt {

std::string to_text(const Setting& setting) {
  if (setting.empty()) return "auto";
  std::string text;
  for (const int value : setting) {
    if (!text.empty()) text += 'x';
    text += value > 0 ? std::to_string(value) : "*";
  }
  return text;
}

std::string setting_refusal(const std::string& variant, const std::vector<Setting>& settings,
                            const Setting& setting) {
  if (setting.empty()) return {};
  if (settings.empty()) return "variant " + variant + " takes no tile";
  if (std::find(settings.begin(), settings.end(), setting) != settings.end()) return {};
  std::string listed;
  constexpr std::size_t most = 16;
  for (const Setting& one : std::span(settings).first(std::min(most, settings.size()))) {
    listed += (listed.empty() ? "" : ", ") + to_text(one);
  }
  if (settings.size() > most) listed += " and " + std::to_string(settings.size() - most) + " more";
  return "tile " + to_text(setting) + " is not among those of " + variant + ": " + listed;
}

}  // namespace katt
