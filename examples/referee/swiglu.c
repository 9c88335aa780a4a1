/* SwiGLU in f32: out = silu(gate) * up, silu(x) = x / (1 + exp(-x)); gate, up, out (T, F). An honest kernel.
 *
 *     cc -O3 -march=native -ffast-math -fopenmp -shared -fPIC -I ../../src/candidate swiglu.c -o swiglu.so -lm */
#include <math.h>

#include <katt/candidate.h>

const char* katt_candidate_about(void) { return "swiglu of examples/referee"; }

const char* katt_candidate_supports(const katt_problem* problem) {
  return problem->dtype == KATT_F32 ? NULL : "only f32";
}

int katt_candidate_forward(const katt_problem* problem) {
  const katt_tensor* gates = katt_input(problem, "gate");
  const float* gate = gates->data;
  const float* up = katt_input(problem, "up")->data;
  float* out = katt_output(problem, "out")->data;
  const int64_t count = gates->shape[0] * gates->shape[1];
#pragma omp parallel for simd schedule(static) num_threads(problem->threads)
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
  return 0;
}
