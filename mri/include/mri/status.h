/* status.h: what a call returns and where its text goes. No exception, no allocation crosses. */
#pragma once

#include <stdint.h>

/* 0 is success; a value that is not listed here is treated as MRI_E_INTERNAL. */
typedef int32_t mri_status;

#define MRI_OK 0
#define MRI_E_ARG 1 /* the caller broke the contract: a value out of range, a null pointer */
#define MRI_E_UNSUPPORTED 2 /* a valid request that this plugin does not offer */
#define MRI_E_VERSION 3     /* no common version */
#define MRI_E_NOMEM \
  4 /* a budget or the machine's memory is exhausted; only this context is affected */
#define MRI_E_DEVICE 5    /* a device or file failed */
#define MRI_E_BUSY 6      /* retry later; nothing changed */
#define MRI_E_CANCELLED 7 /* the caller's cancel flag was seen */
#define MRI_E_NOT_FOUND 8 /* no such context, block, file */
#define MRI_E_INTERNAL 9  /* a defect in the plugin: the host quarantines the context */
#define MRI_E_STATE 10    /* the call is not legal now (see its [tag]) */
#define MRI_E_SPACE 11    /* a caller's buffer is too small; the response says how much is needed */

/* Error text in the caller's memory: it outlives every plugin. 256 bytes, frozen. */
typedef struct mri_error {
  uint32_t struct_size; /* set by the caller */
  int32_t status;       /* the same value as returned */
  int32_t vendor_code;  /* opaque to the host */
  uint32_t msg_len;     /* bytes of msg without the final NUL */
  char msg[240];        /* UTF-8, cut if longer, always NUL-ended */
} mri_error;

/* First member of every growable request. 8 bytes, frozen. */
typedef struct mri_req_hdr {
  uint32_t struct_size; /* the caller's size of the whole struct for the chosen version */
  uint32_t flags;       /* 0 in 1.x */
} mri_req_hdr;

/* First member of every growable response. 16 bytes, frozen. The callee reads and writes only
 * inside min(struct_size, its own size) and reports that minimum twice; it never tests sizes with
 * ==. */
typedef struct mri_rsp_hdr {
  uint32_t struct_size; /* capacity, set by the caller, who zeroes the rest */
  uint32_t written;     /* callee: bytes of this response it filled; 0 with MRI_OK is a defect */
  uint32_t req_seen;    /* callee: bytes of the request it understood */
  uint32_t reserved;    /* 0 */
} mri_rsp_hdr;
