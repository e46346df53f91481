#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "calls.h"

#include <string.h>
#include <sys/mman.h>

#include "mri/mri.h"

#define PAGE 4096u
#define CANARY 0xa5
#define HEAD_DIM 64u
#define N_TOKENS 100 /* of a context */
#define N_VALUES (MRI_BLOCK_TOKENS * HEAD_DIM)

/* One answer at the end of a page, `gap` bytes before the next one, which is out of bounds. */
typedef struct room {
  unsigned char* page;
  uint32_t size, gap;
} room;

static void* answer_of(const room* r) { return r->page + PAGE - r->gap - r->size; }

static void* enter(room* r, uint32_t size, uint32_t gap) {
  r->page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (r->page == MAP_FAILED || mprotect(r->page + PAGE, PAGE, PROT_NONE) != 0) return NULL;
  r->size = size;
  r->gap = gap;
  memset(r->page, CANARY, PAGE);
  memset(answer_of(r), 0, size);
  memcpy(answer_of(r), &size, sizeof(size)); /* struct_size is the first member everywhere */
  return answer_of(r);
}

/* What is wrong with an answer that is looked at for the last time. */
static const char* leave(room* r, mri_status status, uint32_t req_bytes) {
  mri_rsp_hdr hdr;
  const unsigned char* answer = answer_of(r);
  const char* wrong = NULL;
  uint32_t i;
  memcpy(&hdr, answer, sizeof(hdr));
  for (i = 0; i < PAGE; ++i) {
    const unsigned char* byte = r->page + i;
    if ((byte < answer || byte >= answer + r->size) && *byte != CANARY) {
      wrong = "a write outside the host's response";
    }
  }
  if (status != MRI_OK) wrong = "a call failed";
  if (wrong == NULL && hdr.struct_size != r->size) wrong = "struct_size changed";
  if (wrong == NULL && (hdr.written < sizeof(hdr) || hdr.written > r->size)) {
    wrong = "written is not within the host's response";
  }
  if (wrong == NULL && (hdr.req_seen == 0 || hdr.req_seen > req_bytes)) {
    wrong = "req_seen is not within the host's request";
  }
  munmap(r->page, 2 * PAGE);
  return wrong;
}

static mri_error no_error(void) {
  mri_error err;
  memset(&err, 0, sizeof(err));
  err.struct_size = sizeof(err);
  return err;
}

static void fill(float* values, uint32_t n) {
  uint32_t i;
  for (i = 0; i < n; ++i) values[i] = (float)((int32_t)((i * 2654435761u) >> 24) - 128) / 64;
}

static const char* call_quantizer(const void* table, void* self, uint32_t gap, uint64_t* n) {
  static float k[N_VALUES], v[N_VALUES], k2[N_VALUES], v2[N_VALUES];
  static uint8_t index[14 * HEAD_DIM + 64], body[64 * 1024];
  const mri_quantizer_v1* quantizer = table;
  mri_error err = no_error();
  mri_quant_encode_req encode;
  mri_quant_decode_req decode;
  room r;
  mri_quant_desc* desc = enter(&r, sizeof(mri_quant_desc), gap);
  const mri_status status = quantizer->describe(self, HEAD_DIM, desc, &err);
  const uint64_t bytes = desc->body_bytes;
  const char* wrong = leave(&r, status, UINT32_MAX);
  if (wrong != NULL) return wrong;
  if (bytes == 0 || bytes > sizeof(body)) return "body_bytes cannot be";
  fill(k, N_VALUES);
  fill(v, N_VALUES);
  memset(&encode, 0, sizeof(encode));
  encode.hdr.struct_size = sizeof(encode);
  encode.k = k;
  encode.v = v;
  encode.index = index;
  encode.body = body;
  encode.head_dim = HEAD_DIM;
  encode.live_mask = UINT32_MAX;
  memset(&decode, 0, sizeof(decode));
  decode.hdr.struct_size = sizeof(decode);
  decode.index = index;
  decode.body = body;
  decode.k = k2;
  decode.v = v2;
  decode.head_dim = HEAD_DIM;
  decode.live_mask = UINT32_MAX;
  if (quantizer->encode(self, &encode, &err) != MRI_OK) return "encode failed";
  if (quantizer->decode(self, &decode, &err) != MRI_OK) return "decode failed";
  if (memcmp(k, k2, sizeof(k)) != 0 || memcmp(v, v2, sizeof(v)) != 0) return "another page";
  *n = MRI_BLOCK_TOKENS;
  return NULL;
}

static const char* call_kv_tier(const void* table, void* self, uint32_t gap, uint64_t* n) {
  const mri_kv_tier_v1* kv_tier = table;
  mri_error err = no_error();
  mri_tier_block blocks[6];
  mri_tier_action actions[6];
  mri_tier_req req;
  room r;
  mri_tier_rsp* rsp = enter(&r, sizeof(mri_tier_rsp), gap);
  mri_status status;
  uint64_t i, n_actions;
  const char* wrong;
  memset(blocks, 0, sizeof(blocks));
  for (i = 0; i < 6; ++i) {
    blocks[i].id = 100 + i;
    blocks[i].position = (uint32_t)i * MRI_BLOCK_TOKENS;
    blocks[i].n_tokens = MRI_BLOCK_TOKENS;
    blocks[i].bytes = 1000;
  }
  blocks[0].flags = MRI_BLOCK_SINK;
  blocks[5].flags = MRI_BLOCK_PARTIAL;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.blocks = blocks;
  req.n_blocks = 6;
  req.n_tokens = 6 * MRI_BLOCK_TOKENS;
  req.budget_bytes = req.used_bytes = 6000;
  req.wanted_bytes = 500;
  req.why = MRI_TIER_WHY_PRESSURE;
  rsp->actions = actions;
  rsp->capacity = 6;
  status = kv_tier->decide(self, &req, rsp, &err);
  n_actions = rsp->n_actions;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  if (n_actions > 6) return "more actions than room";
  for (i = 0; i < n_actions; ++i) {
    if (actions[i].block_id <= 100 || actions[i].block_id >= 105) return "an impossible action";
  }
  *n = n_actions;
  return NULL;
}

static const char* call_attention(const void* table, void* self, uint32_t gap, uint64_t* n) {
  static float body[2 * N_VALUES], q[2 * HEAD_DIM], o[2 * HEAD_DIM], lse[2];
  static float cosines[64 * HEAD_DIM / 2], sines[64 * HEAD_DIM / 2];
  static uint8_t index[14 * HEAD_DIM + 64];
  const mri_attention_v1* attention = table;
  const mri_rope rope = {cosines, sines, cosines, sines, 32, 32, HEAD_DIM, HEAD_DIM};
  const mri_kv_block block = {
      1, 0, UINT32_MAX, MRI_BLOCK_TOKENS, 0, 0, index, (const uint8_t*)body, 0, 0,
      0, 0, 1,          UINT32_MAX}; /* MRI_KV_F32 */
  mri_attn_seq seq;
  mri_attn_req req;
  mri_attn_item items[4];
  mri_attn_entry entries[4];
  mri_error err = no_error();
  room r;
  mri_attn_plan* plan = enter(&r, sizeof(mri_attn_plan), gap);
  mri_status status;
  const char* wrong;
  uint32_t i;
  fill(body, 2 * N_VALUES);
  fill(q, 2 * HEAD_DIM);
  for (i = 0; i < 64 * HEAD_DIM / 2; ++i) cosines[i] = 1;
  memset(o, 0xff, sizeof(o)); /* NaN */
  memset(&seq, 0, sizeof(seq));
  seq.blocks = &block;
  seq.n_blocks = seq.n_queries = 1;
  seq.position = MRI_BLOCK_TOKENS - 1;
  seq.flags = MRI_ATTN_SEQ_DECODE;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.seqs = &seq;
  req.rope = &rope;
  req.q = q;
  req.o = o;
  req.lse = lse;
  req.n_seqs = req.n_kv_heads = 1;
  req.n_heads = 2;
  req.head_dim = HEAD_DIM;
  req.scale = 0.125f;
  req.trained_tokens = 8192;
  plan->items = items;
  plan->entries = entries;
  plan->items_capacity = plan->entries_capacity = 4;
  status = attention->plan(self, &req, plan, &err);
  *n = plan->n_items;
  if (status == MRI_OK && (plan->n_items == 0 || plan->n_items > 4)) status = MRI_E_INTERNAL;
  if (status == MRI_OK) status = attention->run(self, &req, plan, &err);
  wrong = leave(&r, status, sizeof(req));
  for (i = 0; wrong == NULL && i < 2 * HEAD_DIM; ++i) {
    if (o[i] != o[i]) wrong = "an output that was not written";
  }
  return wrong;
}

static const char* call_summary(const void* table, void* self, uint32_t gap, uint64_t* n) {
  static float k[N_VALUES], v[N_VALUES], k2[N_VALUES], v2[N_VALUES], log_count[MRI_BLOCK_TOKENS];
  const mri_summary_v1* summary = table;
  mri_error err = no_error();
  mri_summary_make_req req;
  room r;
  mri_summary_make_rsp* rsp = enter(&r, sizeof(mri_summary_make_rsp), gap);
  const uint32_t most = summary->pairs_max(self, MRI_BLOCK_TOKENS);
  mri_status status;
  uint32_t n_pairs;
  const char* wrong;
  fill(k, N_VALUES);
  fill(v, N_VALUES);
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.k = k;
  req.v = v;
  req.n_tokens = MRI_BLOCK_TOKENS;
  req.head_dim = HEAD_DIM;
  rsp->k = k2;
  rsp->v = v2;
  rsp->log_count = log_count;
  rsp->pairs_capacity = MRI_BLOCK_TOKENS;
  status = summary->make(self, &req, rsp, &err);
  n_pairs = rsp->n_pairs;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  if (most > MRI_BLOCK_TOKENS || n_pairs == 0 || n_pairs > most) return "an impossible count";
  *n = n_pairs;
  return NULL;
}

static const char* call_batching(const void* table, void* self, uint32_t gap, uint64_t* n) {
  const mri_batching_v1* batching = table;
  mri_error err = no_error();
  mri_batch_request requests[5];
  mri_batch_pick picks[5];
  mri_batch_req req;
  room r;
  mri_batch_rsp* rsp = enter(&r, sizeof(mri_batch_rsp), gap);
  mri_status status;
  uint64_t i, n_picks;
  const char* wrong;
  memset(requests, 0, sizeof(requests));
  for (i = 0; i < 5; ++i) {
    requests[i].id = i + 1;
    requests[i].running = i >= 3;
    requests[i].prompt_tokens_left = i >= 3 ? 0 : 10;
    requests[i].deadline_us = UINT64_MAX;
  }
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.requests = requests;
  req.n_requests = 5;
  req.step_tokens_max = 64;
  req.kv_bytes_free = 1u << 30;
  req.sequences_max = 3;
  rsp->picks = picks;
  rsp->capacity = 5;
  status = batching->next_step(self, &req, rsp, &err);
  n_picks = rsp->n_picks;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  if (n_picks > 3) return "more picks than sequences_max";
  for (i = 0; i < n_picks; ++i) {
    if (picks[i].request >= 5) return "an impossible pick";
  }
  *n = n_picks;
  return NULL;
}

static const char* step_context(const mri_runtime_v1* runtime, void* self, uint64_t ctx,
                                uint32_t gap) {
  static const int32_t tokens[2] = {5, 6};
  mri_error err = no_error();
  mri_step_seq seq;
  mri_step_req req;
  room r;
  mri_step_rsp* rsp = enter(&r, sizeof(mri_step_rsp), gap);
  const char* wrong;
  memset(&seq, 0, sizeof(seq));
  seq.ctx = ctx;
  seq.tokens = tokens;
  seq.n_tokens = 2;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.seqs = &seq;
  req.n_seqs = 1;
  wrong = leave(&r, runtime->forward_step(self, &req, rsp, &err), sizeof(req));
  if (wrong != NULL) return wrong;
  return seq.status != MRI_OK || seq.position != N_TOKENS ? "a step at a wrong position" : NULL;
}

static const char* list_context(const mri_runtime_v1* runtime, void* self, uint64_t ctx,
                                uint32_t gap, uint64_t* n) {
  mri_error err = no_error();
  mri_kv_block_info rows[8];
  mri_summary_req req;
  room r;
  mri_summary_rsp* rsp = enter(&r, sizeof(mri_summary_rsp), gap);
  mri_status status;
  const char* wrong;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.out = rows;
  req.capacity = 8;
  status = runtime->get_kv_summary(self, ctx, &req, rsp, &err);
  *n = rsp->n_out;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  return *n != 4 ? "100 tokens are not 4 blocks" : NULL;
}

static const char* evict_context(const mri_runtime_v1* runtime, void* self, uint64_t ctx,
                                 uint32_t gap) {
  const mri_token_range range = {32, 32};
  mri_error err = no_error();
  mri_evict_req req;
  room r;
  mri_evict_rsp* rsp = enter(&r, sizeof(mri_evict_rsp), gap);
  mri_status status;
  uint64_t n_evicted;
  const char* wrong;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.ranges = &range;
  req.n_ranges = 1;
  req.granularity = MRI_EVICT_BLOCK;
  status = runtime->evict_kv(self, ctx, &req, rsp, &err);
  n_evicted = rsp->n_evicted;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  return n_evicted != 32 ? "other tokens evicted than asked for" : NULL;
}

static const char* call_runtime(const void* table, void* self, uint32_t gap, uint64_t* n) {
  const mri_runtime_v1* runtime = table;
  mri_error err = no_error();
  int32_t tokens[N_TOKENS];
  mri_init_req req;
  room r;
  mri_init_rsp* rsp = enter(&r, sizeof(mri_init_rsp), gap);
  mri_status status;
  uint64_t ctx;
  uint32_t i;
  const char* wrong;
  for (i = 0; i < N_TOKENS; ++i) tokens[i] = (int32_t)i + 1;
  memset(&req, 0, sizeof(req));
  req.hdr.struct_size = sizeof(req);
  req.tokens = tokens;
  req.n_tokens = N_TOKENS;
  req.max_tokens = 2 * N_TOKENS;
  status = runtime->init_context(self, &req, rsp, &err);
  ctx = rsp->ctx;
  wrong = leave(&r, status, sizeof(req));
  if (wrong != NULL) return wrong;
  if (ctx == 0) return "a context with number 0";
  wrong = list_context(runtime, self, ctx, gap, n);
  if (wrong == NULL) wrong = evict_context(runtime, self, ctx, gap);
  if (wrong == NULL) wrong = step_context(runtime, self, ctx, gap);
  runtime->release_context(self, ctx);
  return wrong;
}

static const char* caps_in(const mri_plugin* plugin, uint32_t gap) {
  mri_error err = no_error();
  room r;
  mri_caps* caps = enter(&r, sizeof(mri_caps), gap);
  return leave(&r, plugin->query_caps(plugin->self, caps, &err), UINT32_MAX);
}

const char* call_query_caps(const struct mri_plugin* plugin) {
  const char* wrong = caps_in(plugin, 64);
  return wrong != NULL ? wrong : caps_in(plugin, 0);
}

static const struct {
  const char *kind, *id;
  const char* (*call)(const void* table, void* self, uint32_t gap, uint64_t* n);
} kinds[] = {
    {"runtime", MRI_RUNTIME, call_runtime},       {"kv_tier", MRI_KV_TIER, call_kv_tier},
    {"quantizer", MRI_QUANTIZER, call_quantizer}, {"attention", MRI_ATTENTION, call_attention},
    {"summary", MRI_SUMMARY, call_summary},       {"batching", MRI_BATCHING, call_batching}};

const char* interface_of(const char* kind) {
  size_t i;
  for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    if (strcmp(kinds[i].kind, kind) == 0) return kinds[i].id;
  }
  return NULL;
}

const char* call_kind(const char* kind, const void* table, void* self, uint64_t* n_answers) {
  size_t i;
  for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    if (strcmp(kinds[i].kind, kind) != 0) continue;
    const char* wrong = kinds[i].call(table, self, 64, n_answers);
    return wrong != NULL ? wrong : kinds[i].call(table, self, 0, n_answers);
  }
  return "an unknown kind";
}
