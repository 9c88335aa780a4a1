#pragma once

#include <cstdint>
#include <string>

/// Key lengths of cases from outside, for the adapters.
namespace katt::attention {

/// True when a sequence of `length` keys fits into seq_kv. A longer one would move the queries
/// beyond the keys. That makes no difference (and the length is seq_kv) for a single query that
/// sees all keys before it, in a cache that keeps only the last ones. `moves`: a window or ALiBi
/// depends on the position of a query.
inline bool is_key_length(std::int64_t length, std::int64_t seq_q, std::int64_t seq_kv,
                          bool moves) {
  return length >= 0 && (length <= seq_kv || (seq_q == 1 && !moves));
}

inline std::string key_length_problem(std::int64_t length, std::int64_t seq_kv) {
  return "holds " + std::to_string(length) + ", expected lengths from 0 to the " +
         std::to_string(seq_kv) + " keys of k";
}

}  // namespace katt::attention
