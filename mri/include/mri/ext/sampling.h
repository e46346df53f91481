/* sampling.h: drawing the next token with the model's own library: penalties, cuts, grammar. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_SAMPLING "mri.sampling/1"

/* 8 bytes, frozen. */
typedef struct mri_logit_bias {
  int32_t token;
  float bias; /* added to the logit; -inf forbids the token */
} mri_logit_bias;

/* Values that are off: temperature 0 (the likeliest token), top_k 0, top_p 1, min_p 0,
 * repetition_penalty 1, presence_penalty and frequency_penalty 0. Order of work: bias, penalties,
 * grammar, top_k, top_p, min_p, temperature, draw. Grows at the end. */
typedef struct mri_sampler_req {
  mri_req_hdr hdr;
  uint64_t seed;
  const mri_logit_bias* biases;
  const char* grammar; /* GBNF with a rule `root`, NUL-ended; NULL: none */
  uint32_t n_biases;
  uint32_t top_k;
  uint32_t penalty_tokens; /* newest tokens that penalties look at */
  float temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t reserved;
} mri_sampler_req;

typedef struct mri_sampling_v1 {
  uint32_t struct_size, reserved;
  /* Makes a sampler, *sampler > 0. A grammar that cannot be read, or is too large, is MRI_E_ARG and
   * costs nobody else anything. [any] */
  mri_status (*create)(void* self, const mri_sampler_req* req, uint64_t* sampler, mri_error* err);
  /* Draws from logits[vocab] and takes the token into the sampler's state. MRI_E_STATE: the grammar
   * allows nothing any more. One call at a time per sampler. [any] */
  mri_status (*sample)(void* self, uint64_t sampler, const float* logits, int32_t* token,
                       mri_error* err);
  /* Takes a token into account that was not drawn: the prompt's, for penalties (the grammar does
   * not see it). [any] */
  mri_status (*accept)(void* self, uint64_t sampler, const int32_t* tokens, uint64_t n_tokens,
                       mri_error* err);
  /* Unknown numbers are ignored. [any] */
  void (*release)(void* self, uint64_t sampler);
} mri_sampling_v1;
