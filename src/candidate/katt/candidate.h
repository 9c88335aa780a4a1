/* A kernel of your own in a sweep of Katt, without building Katt: compile a shared library against
 * this header alone (C99 or C++11, no other dependency) and name it with `katt sweep OP --candidate
 * ./mine.so`. docs/candidates.md tells how.
 *
 *     #include <katt/candidate.h>
 *
 *     int katt_candidate_forward(const katt_problem* problem) {
 *       const katt_tensor* x = katt_input(problem, "x");
 *       ...
 *       return 0;
 *     }
 *
 * The library defines katt_candidate_forward, katt_candidate_backward, or both; the other functions
 * are optional. Katt calls them in a process of the library's own, from one thread, one call at a
 * time. */
#ifndef KATT_CANDIDATE_H
#define KATT_CANDIDATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define KATT_CANDIDATE_API __attribute__((visibility("default")))
#else
#define KATT_CANDIDATE_API
#endif

/* The version of this interface. Katt refuses a library of another version. */
#define KATT_CANDIDATE_VERSION 1

/* The most axes of a tensor. */
#define KATT_MAX_RANK 8

#if defined(__cplusplus)
extern "C" {
#endif

/* Element types. KATT_BF16 is the upper half of an IEEE binary32, KATT_F16 an IEEE binary16: both
 * are held as uint16_t. */
enum { KATT_F32 = 0, KATT_F16 = 1, KATT_BF16 = 2, KATT_I64 = 3, KATT_U8 = 4 };

/* A tensor. Element (i0, i1, …) is element i0 * strides[0] + i1 * strides[1] + … of `data`. The
 * data begins on a boundary of 64 bytes. Inputs cannot be written: a store to one ends the process.
 */
typedef struct katt_tensor {
  const char* name;               /* as in `katt run` and docs/ops: "q", "weight", "dout" */
  void* data;                     /* the first element */
  int32_t dtype;                  /* KATT_F32, KATT_F16, KATT_BF16, KATT_I64 or KATT_U8 */
  int32_t rank;                   /* number of axes, 0 to KATT_MAX_RANK; 0: one element */
  int64_t shape[KATT_MAX_RANK];   /* elements along each axis, the first axis first */
  int64_t strides[KATT_MAX_RANK]; /* elements from one to the next along an axis; in version 1
                                     row-major and dense */
} katt_tensor;

/* An axis or a parameter of the operator by name: "seq_q", "causal", "scale", "eps". */
typedef struct katt_value {
  const char* name;
  double number;    /* its value; NaN where `text` is the value */
  const char* text; /* the value of an axis of names, such as "none"; else NULL */
} katt_value;

/* One call: everything is valid until the case ends, and at the same place in every call of a case.
 * The contents of the inputs change between calls. */
typedef struct katt_problem {
  uint32_t version;          /* KATT_CANDIDATE_VERSION of Katt */
  int32_t threads;           /* threads to compute with, at least 1 */
  const char* op;            /* the operator, "attention" */
  const char* pass;          /* "forward" or "backward" */
  int32_t dtype;             /* of the case; a tensor may have another one */
  int32_t num_inputs;        /* elements of `inputs` */
  int32_t num_outputs;       /* elements of `outputs` */
  int32_t num_values;        /* elements of `values` */
  const katt_tensor* inputs; /* of the backward pass with what the forward left: out, lse */
  const katt_tensor* outputs;
  const katt_value* values; /* every axis of the operator, and its further parameters */
  void* workspace;          /* on a boundary of 64 bytes; NULL where its bytes are 0 */
  size_t workspace_bytes;   /* as katt_candidate_workspace() has said, else 0 */
} katt_problem;

/* Computes the outputs of the forward pass from the inputs. Every element of every output is to be
 * written before the return; the outputs hold NaN, or what an earlier call has written. Returns 0,
 * or a number that becomes the reason of a failed row. */
KATT_CANDIDATE_API int katt_candidate_forward(const katt_problem* problem);

/* The same for the backward pass: the outputs are gradients, "d" and the name of an input. */
KATT_CANDIDATE_API int katt_candidate_backward(const katt_problem* problem);

/* Optional: bytes of workspace that a call needs. `data` of the tensors and `workspace` are NULL
 * then. Called once for a case, outside the measurement, before the first call. */
KATT_CANDIDATE_API size_t katt_candidate_workspace(const katt_problem* problem);

/* Optional: NULL for a case that the library computes, else the reason of a skipped row, such as
 * "only causal". `data` of the tensors and `workspace` are NULL then. Called once for a case,
 * first. */
KATT_CANDIDATE_API const char* katt_candidate_supports(const katt_problem* problem);

/* Optional: one line for the result file: what this is, and its version. */
KATT_CANDIDATE_API const char* katt_candidate_about(void);

/* The version that the library was compiled for, which Katt reads before it calls anything. */
#if defined(__GNUC__)
__attribute__((weak, used, visibility("default"))) uint32_t katt_candidate_version =
    KATT_CANDIDATE_VERSION;
#endif

/* The tensor of that name among `count`; NULL when there is none. */
static inline const katt_tensor* katt_find_tensor(const katt_tensor* tensors, int32_t count,
                                                  const char* name) {
  int32_t i;
  for (i = 0; i < count; ++i) {
    if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
  }
  return NULL;
}

/* The input of that name; NULL when the case has none, such as "mask" without a mask. */
static inline const katt_tensor* katt_input(const katt_problem* problem, const char* name) {
  return katt_find_tensor(problem->inputs, problem->num_inputs, name);
}

/* The output of that name; NULL when the case does not ask for it. */
static inline const katt_tensor* katt_output(const katt_problem* problem, const char* name) {
  return katt_find_tensor(problem->outputs, problem->num_outputs, name);
}

/* The number of that name among the axes and parameters, or `fallback` when there is none. */
static inline double katt_number(const katt_problem* problem, const char* name, double fallback) {
  int32_t i;
  for (i = 0; i < problem->num_values; ++i) {
    const katt_value* value = &problem->values[i];
    if (value->text == NULL && strcmp(value->name, name) == 0) return value->number;
  }
  return fallback;
}

/* The same for an integer: `katt_integer(problem, "causal", 0)`. */
static inline int64_t katt_integer(const katt_problem* problem, const char* name,
                                   int64_t fallback) {
  return (int64_t)katt_number(problem, name, (double)fallback);
}

/* The text of that name, such as the score rule's; NULL when there is none. */
static inline const char* katt_text(const katt_problem* problem, const char* name) {
  int32_t i;
  for (i = 0; i < problem->num_values; ++i) {
    if (problem->values[i].text != NULL && strcmp(problem->values[i].name, name) == 0)
      return problem->values[i].text;
  }
  return NULL;
}

#if defined(__cplusplus)
} /* extern "C" */
#endif

#endif /* KATT_CANDIDATE_H */
