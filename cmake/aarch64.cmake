# Toolchain: a cross build for 64-bit ARM under Linux with Debian's compiler; the libraries and headers of arm64 lie in
# KATT_SYSROOT (scripts/test_aarch64 makes it). Programs of the build run under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(KATT_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64/sysroot CACHE PATH "Debian's arm64 packages, unpacked")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KATT_SYSROOT)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
file(REAL_PATH ${KATT_SYSROOT} CMAKE_SYSROOT)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})
# Not by h5cc, the one of this machine.
set(HDF5_ROOT ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/hdf5/serial)

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
