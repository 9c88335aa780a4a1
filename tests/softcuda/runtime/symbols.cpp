#include "tests/softcuda/runtime/state.hpp"

// Variables of the device, which the host names by a symbol.

namespace softcuda {
namespace {

cudaError_t find_symbol(const Call& call, const void* pointer, Variable& variable) {
  const auto it = call.s.symbols.find(pointer);
  if (it == call.s.symbols.end())
    return call.fail_with(cudaErrorInvalidSymbol,
                          text("%p is not a symbol of the device", pointer));
  Module* const module = module_of(*it->second.binary);
  if (!module)
    return call.fail_with(cudaErrorInvalidPtx, text("%s: %s", it->second.name.c_str(),
                                                    it->second.binary->trouble.c_str()));
  variable = find_variable(module, it->second.name);
  if (variable.address == 0)
    return call.fail_with(cudaErrorInvalidSymbol,
                          text("the module has no variable %s", it->second.name.c_str()));
  return cudaSuccess;
}

cudaError_t symbol_address(const Call& call, const void* symbol, std::size_t offset,
                           std::size_t count, void*& address) {
  Variable variable{};
  if (const cudaError_t error = find_symbol(call, symbol, variable)) return error;
  if (offset > variable.bytes || count > variable.bytes - offset) {
    return call.fail_with(cudaErrorInvalidValue, text("bytes %zu + %zu of a symbol of %zu bytes",
                                                      offset, count, variable.bytes));
  }
  address = reinterpret_cast<void*>(variable.address + offset);
  return cudaSuccess;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

extern "C" {

static cudaError_t to_symbol(const Call& call, const void* symbol, const void* from,
                             std::size_t count, std::size_t offset, cudaMemcpyKind kind,
                             cudaStream_t stream, bool asynchronous) {
  void* address = nullptr;
  if (const cudaError_t error = symbol_address(call, symbol, offset, count, address)) return error;
  return copy(call, {address, count, from, count, count, 1, kind}, stream, asynchronous);
}
static cudaError_t from_symbol(const Call& call, void* to, const void* symbol, std::size_t count,
                               std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream,
                               bool asynchronous) {
  void* address = nullptr;
  if (const cudaError_t error = symbol_address(call, symbol, offset, count, address)) return error;
  return copy(call, {to, count, address, count, count, 1, kind}, stream, asynchronous);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t count,
                               std::size_t offset, cudaMemcpyKind kind) {
  CALL("cudaMemcpyToSymbol");
  return to_symbol(call, symbol, from, count, offset, kind, nullptr, false);
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t count,
                                    std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  CALL("cudaMemcpyToSymbolAsync");
  return to_symbol(call, symbol, from, count, offset, kind, stream, true);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t count,
                                 std::size_t offset, cudaMemcpyKind kind) {
  CALL("cudaMemcpyFromSymbol");
  return from_symbol(call, to, symbol, count, offset, kind, nullptr, false);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, std::size_t count,
                                      std::size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  CALL("cudaMemcpyFromSymbolAsync");
  return from_symbol(call, to, symbol, count, offset, kind, stream, true);
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  CALL("cudaGetSymbolAddress");
  return symbol_address(call, symbol, 0, 0, *pointer);
}
cudaError_t cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  CALL("cudaGetSymbolSize");
  Variable variable{};
  const cudaError_t error = find_symbol(call, symbol, variable);
  *bytes = variable.bytes;
  return error;
}

}  // extern "C"
