/* MRI 1.0, first half; see mri.h. */
#pragma once
#include <stdint.h>

#define MRI_VERSION(major, minor) ((major)*65536u + (minor))
#define MRI_1_0 MRI_VERSION(1, 0)
#define MRI_HEADER_VERSION MRI_1_0
typedef int32_t mri_status;
#define MRI_OK 0
#define MRI_E_ARG 1
#define MRI_E_UNSUPPORTED 2
#define MRI_E_VERSION 3
#define MRI_E_NOMEM 4
#define MRI_E_DEVICE 5
#define MRI_E_BUSY 6
#define MRI_E_CANCELLED 7
#define MRI_E_NOT_FOUND 8
#define MRI_E_INTERNAL 9
#define MRI_E_STATE 10
#define MRI_E_SPACE 11
typedef struct mri_error {
  uint32_t struct_size;
  int32_t status;
  int32_t vendor_code;
  uint32_t msg_len;
  char msg[240];
} mri_error;
typedef struct mri_req_hdr {
  uint32_t struct_size;
  uint32_t flags;
} mri_req_hdr;
typedef struct mri_rsp_hdr {
  uint32_t struct_size;
  uint32_t written;
  uint32_t req_seen;
  uint32_t reserved;
} mri_rsp_hdr;
typedef struct mri_host mri_host;
struct mri_host {
  uint32_t struct_size;
  uint32_t negotiated;
  uint32_t min_version, max_version;
  const char* host_name;
  const char* host_version;
  void* self;
  const void* (*get_interface)(const mri_host* host, const char* id);
};
#define MRI_DEVICE_CPU 1
#define MRI_DEVICE_CUDA 2
#define MRI_DTYPE_INT 0
#define MRI_DTYPE_UINT 1
#define MRI_DTYPE_FLOAT 2
#define MRI_DTYPE_BFLOAT 4
typedef struct mri_stream {
  uint32_t kind;
  int32_t device_id;
  void* handle;
} mri_stream;
typedef struct mri_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
  uint64_t byte_extent;
  uint32_t flags;
  uint32_t reserved;
  void* ready_event;
  const void* quant;
} mri_tensor;
#define MRI_BLOCK_TOKENS 32u
#define MRI_SEGMENT_TOKENS 1024u
#define MRI_TIER_HOT 0u
#define MRI_TIER_WARM 1u
#define MRI_TIER_COLD 2u
#define MRI_KV_F32 1u
#define MRI_KV_BF16 2u
#define MRI_KV_INT8 3u
#define MRI_KV_CUSTOM 256u
#define MRI_BLOCK_SINK 1u
#define MRI_BLOCK_PARTIAL 2u
#define MRI_BLOCK_PINNED 4u
#define MRI_BLOCK_EVICTED 8u
typedef struct mri_kv_block {
  uint64_t id;
  uint32_t position;
  uint32_t live_mask;
  uint16_t n_tokens;
  uint16_t tier;
  uint32_t flags;
  const uint8_t* index;
  const uint8_t* body;
  uint32_t index_layer_stride, index_head_stride;
  uint32_t body_layer_stride, body_head_stride;
  uint32_t format;
  uint32_t segment;
} mri_kv_block;
typedef struct mri_kv_summary {
  uint32_t position;
  uint32_t n_tokens;
  uint32_t n_pages;
  uint32_t flags;
  const uint8_t* body;
  const float* bias;
  uint64_t layer_stride, head_stride, page_stride;
  uint64_t reserved;
} mri_kv_summary;
typedef struct mri_rope {
  const float* fine_cos;
  const float* fine_sin;
  const float* coarse_cos;
  const float* coarse_sin;
  uint32_t n_fine, n_coarse;
  uint32_t head_dim;
  uint32_t rotary_dim;
} mri_rope;
#define MRI_PARAM_BOOL 1
#define MRI_PARAM_INT 2
#define MRI_PARAM_FLOAT 3
#define MRI_PARAM_STRING 4
typedef struct mri_param_desc {
  const char* key;
  const char* help;
  const char* choices;
  const char* default_string;
  uint32_t type;
  uint32_t reserved;
  double default_number;
  double min, max;
  uint64_t reserved1;
} mri_param_desc;
typedef struct mri_param {
  const char* key;
  const char* string_value;
  int64_t int_value;
  double float_value;
  uint32_t type;
  uint32_t reserved;
} mri_param;
#define MRI_MAGIC "MRIPLUG\x01"
typedef struct mri_caps {
  mri_rsp_hdr hdr;
  uint32_t thread_model;
  uint32_t determinism;
  uint32_t reload;
  uint32_t sync_model;
  uint64_t feature_bits;
  uint64_t host_bytes, device_bytes, max_tokens;
} mri_caps;
typedef struct mri_plugin mri_plugin;
struct mri_plugin {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  const void* (*get_interface)(void* self, const char* id);
  mri_status (*query_caps)(void* self, mri_caps* out, mri_error* err);
  mri_status (*activate)(void* self, const mri_param* params, uint64_t n_params, mri_error* err);
  mri_status (*drain)(void* self, uint64_t deadline_ns, mri_error* err);
  void (*close)(void* self);
};
typedef struct mri_plugin_entry {
  uint8_t magic[8];
  uint32_t struct_size;
  uint32_t built_version;
  uint32_t min_version, max_version;
  uint64_t layout_hash;
  const char* plugin_id;
  const char* plugin_version;
  const char* build_id;
  const char* kind;
  const mri_param_desc* params;
  uint64_t n_params;
  mri_status (*open)(const mri_host* host, uint32_t chosen, mri_plugin** out, mri_error* err);
} mri_plugin_entry;
#ifdef __cplusplus
#define MRI_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define MRI_EXPORT __attribute__((visibility("default")))
#endif
#define MRI_HOST_BUFFER "mri.host.buffer/1"
typedef struct mri_host_buffer_v1 {
  uint32_t struct_size, reserved;
  void* (*alloc)(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag);
  void (*release)(const mri_host* host, void* p);
} mri_host_buffer_v1;
#define MRI_HOST_LOG "mri.host.log/1"
#define MRI_LOG_DEBUG 0u
#define MRI_LOG_INFO 1u
#define MRI_LOG_WARNING 2u
#define MRI_LOG_ERROR 3u
#define MRI_LOG_HOST_MISBEHAVING 4u
#define MRI_LOG_PLUGIN_MISBEHAVING 5u
typedef struct mri_host_log_v1 {
  uint32_t struct_size, reserved;
  void (*write)(const mri_host* host, uint32_t level, const char* text, uint64_t n_bytes);
} mri_host_log_v1;
#define MRI_HOST_METRICS "mri.host.metrics/1"
#define MRI_METRIC_COUNTER 1u
#define MRI_METRIC_GAUGE 2u
#define MRI_METRIC_HISTOGRAM 3u
typedef struct mri_host_metrics_v1 {
  uint32_t struct_size, reserved;
  uint32_t (*define)(const mri_host* host, uint32_t kind, const char* name, const char* help);
  void (*record)(const mri_host* host, uint32_t id, double value);
} mri_host_metrics_v1;
#define MRI_HOST_THREADS "mri.host.threads/1"
typedef struct mri_host_threads_v1 {
  uint32_t struct_size, reserved;
  uint32_t (*concurrency)(const mri_host* host);
  void (*parallel_for)(const mri_host* host, uint64_t n,
                       void (*task)(void* user, uint64_t i, uint32_t worker), void* user);
} mri_host_threads_v1;
#define MRI_HOST_STACK "mri.host.stack/1"
typedef struct mri_host_stack_v1 {
  uint32_t struct_size, reserved;
  const void* (*find)(const mri_host* host, const char* id, uint32_t ordinal, void** self);
} mri_host_stack_v1;
#define MRI_TEXT "mri.text/1"
typedef struct mri_model_info {
  mri_rsp_hdr hdr;
  uint64_t vocab_size, trained_tokens, max_tokens;
  uint64_t parameters, weight_bytes;
  uint64_t kv_bytes_per_token_bf16;
  uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_ff;
  char name[64];
  char architecture[32];
} mri_model_info;
typedef struct mri_chat_message {
  const char* role;
  const char* content;
} mri_chat_message;
typedef struct mri_text_v1 {
  uint32_t struct_size, reserved;
  mri_status (*model_info)(void* self, mri_model_info* out, mri_error* err);
  mri_status (*tokenize)(void* self, const char* text, uint64_t n_bytes, uint32_t add_special,
                         uint32_t parse_special, int32_t* out, uint64_t capacity, uint64_t* n_out,
                         mri_error* err);
  mri_status (*detokenize)(void* self, const int32_t* tokens, uint64_t n_tokens, uint32_t special,
                           char* out, uint64_t capacity, uint64_t* n_out, mri_error* err);
  mri_status (*chat)(void* self, const mri_chat_message* messages, uint64_t n_messages,
                     uint32_t add_generation_prompt, char* out, uint64_t capacity, uint64_t* n_out,
                     mri_error* err);
  uint32_t (*is_end)(void* self, int32_t token);
} mri_text_v1;
