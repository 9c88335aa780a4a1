#include "tests/softcuda/libraries/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/runtime/runtime.hpp"

namespace softcuda::libraries {

bool known(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}
void* mapped(const void* pointer, std::size_t bytes) {
  return reach(reinterpret_cast<std::uint64_t>(pointer), bytes);
}
cublasStatus_t bad(const char* api, cublasStatus_t status, const std::string& line) {
  report(text("%s: %s (%s)", api, line.c_str(), cublasLtGetStatusName(status)));
  return status;
}

namespace {

std::size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

float load(const void* data, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == CUDA_R_16BF ? widen<true>(bits) : widen<false>(bits);
}
void store(void* data, cudaDataType_t type, std::size_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] =
        type == CUDA_R_16BF ? narrow<true>(value) : narrow<false>(value);
  }
}

const void* at(const void* base, const Matrix& matrix, int batch) {
  return static_cast<const char*>(base) + static_cast<std::int64_t>(batch) * matrix.batch_stride *
                                              static_cast<std::int64_t>(bytes_of(matrix.type));
}

bool multiplies(const Product& p) { return p.k > 0 && p.alpha != 0; }

/// The operands of one batch as f32: A column by column (m × k), B so as well (k × n).
struct Operands {
  std::vector<float> a, b;
};
Operands read_operands(const Product& p, int batch) {
  Operands o{std::vector<float>(static_cast<std::size_t>(p.m * p.k)),
             std::vector<float>(static_cast<std::size_t>(p.k * p.n))};
  const void* const a = mapped(at(p.pa, p.a, batch), p.a.span() * bytes_of(p.a.type));
  const void* const b = mapped(at(p.pb, p.b, batch), p.b.span() * bytes_of(p.b.type));
  for (std::int64_t q = 0; q < p.k; ++q) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      o.a[static_cast<std::size_t>(q * p.m + i)] =
          load(a, p.a.type, p.trans_a ? p.a.index(q, i) : p.a.index(i, q));
    }
  }
  for (std::int64_t j = 0; j < p.n; ++j) {
    for (std::int64_t q = 0; q < p.k; ++q) {
      o.b[static_cast<std::size_t>(j * p.k + q)] =
          load(b, p.b.type, p.trans_b ? p.b.index(j, q) : p.b.index(q, j));
    }
  }
  return o;
}

/// result (m × n, column by column) = A · B, in blocks that stay in the registers and the first cache.
void multiply(const Product& p, const Operands& o, std::vector<float>& result) {
  constexpr std::int64_t rows_at_once = 256, columns_at_once = 4;
  for (std::int64_t i0 = 0; i0 < p.m; i0 += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, p.m - i0);
    for (std::int64_t j0 = 0; j0 < p.n; j0 += columns_at_once) {
      const std::int64_t columns = std::min(columns_at_once, p.n - j0);
      float sums[columns_at_once][rows_at_once] = {};
      for (std::int64_t q = 0; q < p.k; ++q) {
        const float* const line = o.a.data() + q * p.m + i0;
        for (std::int64_t j = 0; j < columns; ++j) {
          const float factor = o.b[static_cast<std::size_t>((j0 + j) * p.k + q)];
          for (std::int64_t i = 0; i < rows; ++i) sums[j][i] += line[i] * factor;
        }
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        std::copy_n(sums[j], rows, result.data() + (j0 + j) * p.m + i0);
      }
    }
  }
}

/// D = epilogue(alpha · result + beta · C).
void write_result(const Product& p, int batch, const std::vector<float>& result) {
  const void* const c =
      p.beta != 0 ? mapped(at(p.pc, p.c, batch), p.c.span() * bytes_of(p.c.type)) : nullptr;
  void* const d = mapped(at(p.pd, p.d, batch), p.d.span() * bytes_of(p.d.type));
  const void* bias = nullptr;
  if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(p.bias_type));
    bias = mapped(static_cast<const char*>(p.bias) + batch * p.bias_stride * bytes,
                  static_cast<std::size_t>(p.m * bytes));
  }
  for (std::int64_t j = 0; j < p.n; ++j) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      float value = p.alpha * result[static_cast<std::size_t>(j * p.m + i)];
      if (c) value += p.beta * load(c, p.c.type, p.c.index(i, j));
      if (bias) value += load(bias, p.bias_type, static_cast<std::size_t>(i));
      if (p.epilogue & CUBLASLT_EPILOGUE_RELU) value = std::max(value, 0.0F);
      if (p.epilogue & CUBLASLT_EPILOGUE_GELU) {
        const float inner = value + 0.044715F * value * value * value;
        value = 0.5F * value * (1 + std::tanh(0.7978845608F * inner));
      }
      store(d, p.d.type, p.d.index(i, j), value);
    }
  }
}

void compute(const Product& p) {
  if (p.workspace_bytes) {
    std::memset(mapped(p.workspace, p.workspace_bytes), 0xFF, p.workspace_bytes);
  }
  std::vector<float> result(static_cast<std::size_t>(p.m * p.n));
  for (int batch = 0; batch < p.d.batches; ++batch) {
    if (multiplies(p)) multiply(p, read_operands(p, batch), result);
    write_result(p, batch, result);
  }
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

std::size_t bytes_of(const Matrix& matrix) { return matrix.span_all() * bytes_of(matrix.type); }

bool are_aligned(const char* api, const Product& p) {
  const auto aligned = [&](const char* operand, const void* pointer, cudaDataType_t type) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % bytes_of(type) == 0) return true;
    report(text("%s: %s at %p is not aligned for its type", api, operand, pointer));
    return false;
  };
  return aligned("A", p.pa, p.a.type) && aligned("B", p.pb, p.b.type) &&
         aligned("D", p.pd, p.d.type);
}

/// Whether every operand lies in one allocation. The real library launches a kernel that faults;
/// here the caller hears of it at once.
bool are_allocated(const char* api, const Product& p) {
  if (multiplies(p) && (!in_one_allocation(api, "A", p.pa, bytes_of(p.a)) ||
                        !in_one_allocation(api, "B", p.pb, bytes_of(p.b)))) {
    return false;
  }
  if (p.beta != 0 && !in_one_allocation(api, "C", p.pc, bytes_of(p.c))) return false;
  if (!in_one_allocation(api, "D", p.pd, bytes_of(p.d))) return false;
  const std::size_t bias_bytes = static_cast<std::size_t>(p.m) * bytes_of(p.bias_type);
  if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) &&
      !in_one_allocation(api, "bias", p.bias, bias_bytes)) {
    return false;
  }
  return p.workspace_bytes == 0 ||
         in_one_allocation(api, "workspace", p.workspace, p.workspace_bytes);
}

/// Reports a D that overlaps A or B, and a workspace that overlaps an operand.
void report_overlaps(const char* api, const Product& p) {
  if (multiplies(p) && (overlap(p.pa, bytes_of(p.a), p.pd, bytes_of(p.d)) ||
                        overlap(p.pb, bytes_of(p.b), p.pd, bytes_of(p.d)))) {
    report(text("%s: D overlaps an operand of the product", api));
  }
  const struct {
    const char* name;
    const void* pointer;
    std::size_t bytes;
  } operands[] = {{"A", p.pa, bytes_of(p.a)},
                  {"B", p.pb, bytes_of(p.b)},
                  {"C", p.pc, p.beta != 0 ? bytes_of(p.c) : 0},
                  {"D", p.pd, bytes_of(p.d)}};
  for (const auto& operand : operands) {
    if (p.workspace_bytes && operand.bytes &&
        overlap(operand.pointer, operand.bytes, p.workspace, p.workspace_bytes)) {
      report(text("%s: %s overlaps the workspace", api, operand.name));
    }
  }
}

}  // namespace

cublasStatus_t submit(const char* api, const Product& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!are_aligned(api, p)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!are_allocated(api, p)) return CUBLAS_STATUS_EXECUTION_FAILED;
  report_overlaps(api, p);
  const cudaError_t error =
      enqueue(api, stream,
              text("%s m=%ld n=%ld k=%ld batches=%d", api, static_cast<long>(p.m),
                   static_cast<long>(p.n), static_cast<long>(p.k), p.d.batches),
              [p] { compute(p); });
  return error == cudaSuccess                      ? CUBLAS_STATUS_SUCCESS
         : error == cudaErrorInvalidResourceHandle ? CUBLAS_STATUS_INVALID_VALUE
                                                   : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace softcuda::libraries
