/* text.h: vocabulary, chat template and facts of the model that a runtime has loaded. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_TEXT "mri.text/1"

typedef struct mri_model_info { /* grows at the end */
  mri_rsp_hdr hdr;
  uint64_t vocab_size, trained_tokens, max_tokens;
  uint64_t parameters, weight_bytes;
  uint64_t kv_bytes_per_token_bf16;
  uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_ff;
  char name[64];
  char architecture[32];
} mri_model_info;

/* One message of a chat. 16 bytes, frozen. */
typedef struct mri_chat_message {
  const char* role;
  const char* content;
} mri_chat_message;

typedef struct mri_text_v1 {
  uint32_t struct_size, reserved;
  mri_status (*model_info)(void* self, mri_model_info* out, mri_error* err); /* [any] */
  /* Writes up to capacity token numbers; *n_out is the full count, MRI_E_SPACE when larger than
   * capacity. parse_special: read markers such as <|im_start|> as one token. [any] */
  mri_status (*tokenize)(void* self, const char* text, uint64_t n_bytes, uint32_t add_special,
                         uint32_t parse_special, int32_t* out, uint64_t capacity, uint64_t* n_out,
                         mri_error* err);
  /* Bytes of the tokens (may end inside a UTF-8 sequence); same capacity rule; special tokens give
   * no bytes unless asked. [any] */
  mri_status (*detokenize)(void* self, const int32_t* tokens, uint64_t n_tokens, uint32_t special,
                           char* out, uint64_t capacity, uint64_t* n_out, mri_error* err);
  /* The model's chat template applied to the messages; same capacity rule. [any] */
  mri_status (*chat)(void* self, const mri_chat_message* messages, uint64_t n_messages,
                     uint32_t add_generation_prompt, char* out, uint64_t capacity, uint64_t* n_out,
                     mri_error* err);
  /* 1 when the token ends an answer. [any] */
  uint32_t (*is_end)(void* self, int32_t token);
} mri_text_v1;
