#pragma once

#include <cstdint>
#include <string>

/// Key lengths of cases from outside, for the adapters.
namespace katt::attention {

/// Whether a sequence of `length` keys is one of the seq_kv that there are. A longer one would move
/// the queries beyond the keys; that makes no difference (and the length is seq_kv) to a single query
/// that sees all keys before it, in a cache of which the last ones alone are kept.
/// `moves`: a window or ALiBi tells where a query is.
inline bool is_key_length(std::int64_t length, std::int64_t seq_q, std::int64_t seq_kv,
                          bool moves) {
  return length >= 0 && (length <= seq_kv || (seq_q == 1 && !moves));
}

inline std::string key_length_problem(std::int64_t length, std::int64_t seq_kv) {
  return "holds " + std::to_string(length) + ", expected lengths from 0 to the " +
         std::to_string(seq_kv) + " keys of k";
}

}  // namespace katt::attention
