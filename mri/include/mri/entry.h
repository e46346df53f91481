/* entry.h: the one symbol a plugin exports, and the object that its open() makes.
 *
 * Calls follow:  open get_interface* query_caps? activate (calls of the interfaces)* drain? close
 * Tags at the end of each comment: [control] one thread at a time per plugin; [step:ctx] one at a
 * time per context, any thread; [any] any thread at any time after activate. A state tag says when
 * else it is legal. */
#pragma once

#include <stdint.h>

#include "mri/ext/params.h"
#include "mri/host.h"
#include "mri/status.h"
#include "mri/version.h"

#define MRI_MAGIC "MRIPLUG\x01" /* 8 bytes */

/* Capabilities. 64 bytes in 1.0; grows at the end. */
typedef struct mri_caps {
  mri_rsp_hdr hdr;
  uint32_t thread_model; /* 0 unknown, 1 one call per plugin, 2 per context, 3 fully re-entrant */
  uint32_t determinism;  /* 0 none, 1 same run order, 2 batch-invariant, 3 across like devices */
  uint32_t reload;       /* 0 restart only, 1 drain then replace, 2 exports state */
  uint32_t sync_model;   /* 1 enqueues only, 2 may block the calling thread */
  uint64_t feature_bits; /* per kind; unknown bits are ignored */
  uint64_t host_bytes, device_bytes, max_tokens; /* 0: not stated */
} mri_caps;

typedef struct mri_plugin mri_plugin;

/* Plugin-owned until close(). 56 bytes in 1.0; grows at the end. */
struct mri_plugin {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  /* The table of interface `id` ("mri.quantizer/1"), or NULL. Its functions take the same `self`.
   * Pure: the same answer each time, before activate too. [any] */
  const void* (*get_interface)(void* self, const char* id);
  /* [control] */
  mri_status (*query_caps)(void* self, mri_caps* out, mri_error* err);
  /* Takes the parameters and allocates. Called once, before any interface call. [control] */
  mri_status (*activate)(void* self, const mri_param* params, uint64_t n_params, mri_error* err);
  /* Stops threads and finishes work; interface calls are illegal afterwards. [control] */
  mri_status (*drain)(void* self, uint64_t deadline_ns, mri_error* err);
  /* Frees everything; no code of the plugin may run afterwards. The library stays mapped.
   * [control] */
  void (*close)(void* self);
};

/* The exported data symbol `mri_plugin_entry_v1`. 88 bytes, grows at the end. */
typedef struct mri_plugin_entry {
  uint8_t magic[8];
  uint32_t struct_size;
  uint32_t built_version; /* MRI_HEADER_VERSION of the headers it was built with */
  uint32_t min_version, max_version;
  uint64_t layout_hash;       /* diagnostics only */
  const char* plugin_id;      /* reverse DNS: [a-z0-9._-] */
  const char* plugin_version; /* semver */
  const char* build_id;       /* compiler, flags, commit */
  const char* kind;           /* runtime | kv_tier | quantizer | attention | summary | batching */
  const mri_param_desc* params;
  uint64_t n_params;
  /* Makes the plugin object. `chosen` is the negotiated version. May refuse with MRI_E_VERSION.
   * [control] */
  mri_status (*open)(const mri_host* host, uint32_t chosen, mri_plugin** out, mri_error* err);
} mri_plugin_entry;

#ifdef __cplusplus
#define MRI_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define MRI_EXPORT __attribute__((visibility("default")))
#endif
