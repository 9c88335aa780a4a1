/* Attention in f32 for katt sweep: softmax(scale * Q K^T) V, forward and backward, with grouped
 * heads and a causal mask. A row of queries meets the keys one by one (Dao et al. 2022,
 * arXiv:2205.14135, algorithm 1 with tiles of one).
 *
 *     cc -O3 -march=native -fopenmp -shared -fPIC -I ../../src/candidate attention.c \
 *       -o attention.so -lm */
#include <katt/candidate.h>
#include <math.h>

const char* katt_candidate_about(void) { return "attention of examples/candidate"; }

const char* katt_candidate_supports(const katt_problem* problem) {
  if (problem->dtype != KATT_F32) return "only f32";
  if (katt_input(problem, "mask") || katt_input(problem, "alibi_slopes") ||
      katt_input(problem, "kv_len") || katt_number(problem, "softcap", 0) != 0 ||
      katt_integer(problem, "window_left", -1) >= 0 ||
      katt_integer(problem, "window_right", -1) >= 0) {
    return "no mask but causal";
  }
  return NULL;
}

/* Shapes, and the data of a head: q (B, Hq, Sq, D), k and v (B, Hkv, Skv, D). */
typedef struct {
  int64_t batch, heads, kv_heads, seq_q, seq_kv, dim;
  float scale;
  int causal;
} shapes;

static shapes shapes_of(const katt_problem* problem) {
  const katt_tensor *q = katt_input(problem, "q"), *k = katt_input(problem, "k");
  shapes s = {q->shape[0], q->shape[1], k->shape[1], q->shape[2], k->shape[2], q->shape[3], 0, 0};
  s.scale = (float)katt_number(problem, "scale", 1 / sqrt((double)s.dim));
  s.causal = (int)katt_integer(problem, "causal", 0);
  return s;
}

/* Keys that query i sees: 0 to this many. */
static int64_t visible(const shapes* s, int64_t i) {
  const int64_t keys = s->causal ? i + s->seq_kv - s->seq_q + 1 : s->seq_kv;
  return keys < 0 ? 0 : keys < s->seq_kv ? keys : s->seq_kv;
}

static float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

/* y = by * y + a * x */
static void add(float* y, float by, float a, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t d = 0; d < n; ++d) y[d] = by * y[d] + a * x[d];
}

int katt_candidate_forward(const katt_problem* problem) {
  const shapes s = shapes_of(problem);
  const float* q = katt_input(problem, "q")->data;
  const float* k = katt_input(problem, "k")->data;
  const float* v = katt_input(problem, "v")->data;
  float* out = katt_output(problem, "out")->data;
#pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(problem->threads)
  for (int64_t head = 0; head < s.batch * s.heads; ++head) {
    for (int64_t i = 0; i < s.seq_q; ++i) {
      const int64_t group = s.heads / s.kv_heads, row = (head * s.seq_q + i) * s.dim;
      const int64_t keys =
          head / group * s.seq_kv * s.dim; /* heads of a batch entry share K and V */
      float largest = -INFINITY, sum = 0;
      memset(out + row, 0, (size_t)s.dim * sizeof(float));
      for (int64_t j = 0; j < visible(&s, i); ++j) {
        const float score = s.scale * dot(q + row, k + keys + j * s.dim, s.dim);
        const float before = largest;
        largest = fmaxf(largest, score);
        const float shrunk = expf(before - largest), weight = expf(score - largest);
        sum = sum * shrunk + weight;
        add(out + row, shrunk, weight, v + keys + j * s.dim, s.dim);
      }
      if (sum > 0) add(out + row, 1 / sum, 0, out + row, s.dim);
    }
  }
  return 0;
}

/* P = exp(scale q k - lse), dS = P (dout v - sum of dout out), dq = scale dS k, dk = scale dS q, dv
 * = P dout */
int katt_candidate_backward(const katt_problem* problem) {
  const shapes s = shapes_of(problem);
  const float* q = katt_input(problem, "q")->data;
  const float* k = katt_input(problem, "k")->data;
  const float* v = katt_input(problem, "v")->data;
  const float* out = katt_input(problem, "out")->data; /* of the forward pass */
  const float* lse = katt_input(problem, "lse")->data; /* (B, Hq, Sq), natural logarithm */
  const float* dout = katt_input(problem, "dout")->data;
  float* dq = katt_output(problem, "dq")->data;
  float* dk = katt_output(problem, "dk")->data;
  float* dv = katt_output(problem, "dv")->data;
  const int64_t group = s.heads / s.kv_heads, size = s.seq_kv * s.dim;
#pragma omp parallel for num_threads(problem->threads)
  for (int64_t kv_head = 0; kv_head < s.batch * s.kv_heads; ++kv_head) {
    const int64_t keys = kv_head * size;
    memset(dk + keys, 0, (size_t)size * sizeof(float));
    memset(dv + keys, 0, (size_t)size * sizeof(float));
    for (int64_t i = 0; i < group * s.seq_q; ++i) { /* the queries of the group follow each other */
      const int64_t query = kv_head * group * s.seq_q + i, row = query * s.dim;
      const float delta = dot(dout + row, out + row, s.dim);
      memset(dq + row, 0, (size_t)s.dim * sizeof(float));
      for (int64_t j = 0; j < visible(&s, i % s.seq_q); ++j) {
        const int64_t key = keys + j * s.dim;
        const float p = expf(s.scale * dot(q + row, k + key, s.dim) - lse[query]);
        const float slope = s.scale * p * (dot(dout + row, v + key, s.dim) - delta);
        add(dq + row, 1, slope, k + key, s.dim);
        add(dk + key, 1, slope, q + row, s.dim);
        add(dv + key, 1, p, dout + row, s.dim);
      }
    }
  }
  return 0;
}
