#pragma once

namespace katt {

/// Writes to a byte the value that it has, so that the system brings its page. Other threads may use
/// it meanwhile. Volatile: Clang makes an atomic write that changes nothing a read.
inline void touch_byte(unsigned char* byte) {
  __atomic_fetch_or(static_cast<volatile unsigned char*>(byte), 0, __ATOMIC_RELAXED);
}

}  // namespace katt
