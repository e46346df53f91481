/* kv_view.h: how KV memory looks to attention, quantizer and summary plugins.
 *
 * A *block* is MRI_BLOCK_TOKENS consecutive tokens of one context, in all layers and KV heads. A
 * *page* is one KV head of one block in one layer. D is the head size. Keys are stored rotated by
 * the token's offset inside its block only (0..31); the query is rotated by the distance between
 * blocks. So a block may be placed at any position for free. Rotary pairs are (i, i + D/2) for
 * every model; the runtime permutes weights where a file pairs neighbours.
 *
 * A page is an index and a body. The index is the same for every format and stays in memory even
 * when the body does not. It is padded to a multiple of 64 bytes:
 *
 *   k_min    [D] f16  smallest key of the page's live tokens, per channel
 *   k_step   [D] f16  (largest - smallest) / 255; 0 for a constant channel
 *   k_radius [D] f16  mean |k - (k_min + 127.5 k_step)| per channel
 *   k_top    [D] u64  the two top bits of each token's 8-bit key code: token t = 8 g + j is in
 *                     bits [8 j + 2 g, 8 j + 2 g + 2)
 *
 * 8-bit key code of value k: round((k - k_min) / k_step), 0..255.
 *
 * Bodies of the formats that the kernel table runs fused:
 *
 *   MRI_KV_F32   K [D][32] f32 (channel-major), V [32][D] f32
 *   MRI_KV_BF16  K [D/2][32][2] bf16 (channel pairs interleaved),
 *                V [16][D][2] bf16 (token pairs interleaved)
 *   MRI_KV_INT8  k_mid [D] u64 (bits 5..4 of the key code, packed as k_top),
 *                k_low [D][16] u8 (bits 3..0: token j in the low nibble of byte j, token j + 16 in
 *                the high nibble),
 *                v_code [32][D] i8, v_step [32][ceil(D/32)] f16: value = v_step * v_code, one step
 *                per token and 32 channels
 *
 * Tokens that are not live have unspecified but finite contents. */
#pragma once

#include <stdint.h>

#define MRI_BLOCK_TOKENS 32u
#define MRI_SEGMENT_TOKENS 1024u

#define MRI_TIER_HOT 0u
#define MRI_TIER_WARM 1u
#define MRI_TIER_COLD 2u

#define MRI_KV_F32 1u
#define MRI_KV_BF16 2u
#define MRI_KV_INT8 3u
/* And above: known only to its quantizer; the runtime decodes it before attention. */
#define MRI_KV_CUSTOM 256u

#define MRI_BLOCK_SINK 1u    /* first tokens of the text */
#define MRI_BLOCK_PARTIAL 2u /* still being filled: its index is not valid */
#define MRI_BLOCK_PINNED 4u  /* never leaves hot */
#define MRI_BLOCK_EVICTED 8u /* gone: contents unknown, never read */

/* One block. 64 bytes, frozen. Strides in bytes. The page of (layer l, KV head h) is at
 * index + l * index_layer_stride + h * index_head_stride, and its body likewise. */
typedef struct mri_kv_block {
  uint64_t id;        /* unique in the context while it lives */
  uint32_t position;  /* of the first token in the text; a multiple of MRI_BLOCK_TOKENS */
  uint32_t live_mask; /* bit t: token t is filled and not evicted */
  uint16_t n_tokens;  /* filled tokens, 1..32 */
  uint16_t tier;
  uint32_t flags;
  const uint8_t* index; /* never NULL */
  const uint8_t* body;  /* NULL while only the backing holds it */
  uint32_t index_layer_stride, index_head_stride;
  uint32_t body_layer_stride, body_head_stride;
  uint32_t format;  /* MRI_KV_* of body */
  uint32_t segment; /* which mri_kv_summary covers it, or UINT32_MAX */
} mri_kv_block;

/* The summary of one segment: n_pages pages of 32 (key, value) pairs in MRI_KV_BF16 body form, each
 * with a logit bias (ln of the number of tokens it stands for; -inf for an unused slot). Keys are
 * rotated by their offset from the segment's first token. 64 bytes, frozen. Page p of (layer l,
 * head h): body + l * layer_stride + h * head_stride + p * page_stride. */
typedef struct mri_kv_summary {
  uint32_t position; /* of the segment's first token */
  uint32_t n_tokens;
  uint32_t n_pages;
  uint32_t flags;
  const uint8_t* body;
  const float* bias; /* bias of (l, h, p, t): bias[((l * n_kv_heads + h) * n_pages + p) * 32 + t] */
  uint64_t layer_stride, head_stride, page_stride;
  uint64_t reserved;
} mri_kv_summary;

/* cos and sin of multiples of the rotary angles: [n][D/2] f32 each. `fine` counts tokens
 * (0..n_fine-1), `coarse` counts blocks of 32 tokens (0..n_coarse-1). 48 bytes, frozen. */
typedef struct mri_rope {
  const float* fine_cos;
  const float* fine_sin;
  const float* coarse_cos;
  const float* coarse_sin;
  uint32_t n_fine, n_coarse;
  uint32_t head_dim;
  uint32_t rotary_dim; /* rotated channels: pairs are (i, i + rotary_dim/2), i < rotary_dim/2 */
} mri_rope;
