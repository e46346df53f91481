/* tensor.h: a borrowed view of memory. Its first 48 bytes have DLPack's DLTensor layout. */
#pragma once

#include <stdint.h>

#define MRI_DEVICE_CPU 1 /* DLPack device codes */
#define MRI_DEVICE_CUDA 2
#define MRI_DTYPE_INT 0 /* DLPack type codes */
#define MRI_DTYPE_UINT 1
#define MRI_DTYPE_FLOAT 2
#define MRI_DTYPE_BFLOAT 4

/* 16 bytes, frozen. */
typedef struct mri_stream {
  uint32_t kind; /* 0: the calling CPU thread; 1: CUstream */
  int32_t device_id;
  void* handle; /* borrowed; NULL when kind is 0 */
} mri_stream;

/* 80 bytes, frozen. Valid for one call. */
typedef struct mri_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides; /* in elements; not NULL when ndim > 0 */
  uint64_t byte_offset;
  uint64_t byte_extent; /* bytes that may be touched from data + byte_offset */
  uint32_t flags;       /* bit 0: read-only; bit 1: pinned host memory */
  uint32_t reserved;
  void* ready_event; /* host-owned; wait on it when using another stream */
  const void* quant; /* NULL in 1.x */
} mri_tensor;
