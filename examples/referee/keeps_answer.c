/* The kernel of swiglu.c, but it computes only in the first calls: later it leaves the answer that stands there. It looks
 * infinitely fast, and katt referee rejects it.
 *
 *     cc -O3 -shared -fPIC -I ../../src/candidate keeps_answer.c -o keeps_answer.so -lm */
#include <math.h>

#include <katt/candidate.h>

int katt_candidate_forward(const katt_problem* problem) {
  static int calls = 0;
  const katt_tensor* gates = katt_input(problem, "gate");
  const float* gate = gates->data;
  const float* up = katt_input(problem, "up")->data;
  float* out = katt_output(problem, "out")->data;
  const int64_t count = gates->shape[0] * gates->shape[1];
  if (++calls > 3 && out[0] == out[0]) return 0; /* a NaN would be a sign of a comparison */
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
  return 0;
}
