// A runtime as the checks see it: the five methods of mri/kind/runtime.h, in this process or over
// HTTP, so that the same checks serve both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mri/conformance/suite.h"
#include "mri/kind/runtime.h"

namespace mri::conformance {

struct Init {
  std::vector<int32_t> tokens;
  bool logits = false;
  uint32_t chunk_tokens = 0;
  uint64_t max_tokens = 0, budget_bytes = 0;
  std::vector<mri_token_range> pinned;
  const uint32_t* cancel = nullptr;                         // not over HTTP
  std::function<void(uint64_t done, uint64_t n)> progress;  // not over HTTP
};
struct Inited {
  mri_status status = MRI_OK;
  std::string text;  // of an error
  uint64_t ctx = 0, n_chunks = 0;
  mri_kv_usage usage{};
  std::vector<float> logits;
};

struct Step {
  uint64_t ctx = 0;
  std::vector<int32_t> tokens;
  bool logits = false, all_logits = false;
  uint32_t flags = 0;
};
struct Stepped {
  mri_status status = MRI_OK;  // of this sequence
  uint64_t position = 0;
  std::vector<float> logits;
};
struct SteppedAll {
  mri_status status = MRI_OK;  // of the call
  std::string text;
  uint64_t n_tokens = 0;
  std::vector<Stepped> seqs;
};

struct Listed {
  mri_status status = MRI_OK;
  std::string text;
  uint64_t n_out = 0, kv_epoch = 0;
  mri_kv_usage usage{};
  std::vector<mri_kv_block_info> rows;
};

struct Evicted {
  mri_status status = MRI_OK;
  std::string text;
  uint64_t n_evicted = 0, bytes_freed = 0;
  bool is_confirmation_there = false;
  uint32_t confirm_state = 0, n_refused = 0;
  uint64_t confirm_epoch = 0;
};

// What a server makes of X-MRI-Version.
struct VersionAnswer {
  int http_status = 0;
  std::string served, supported;  // the answer's X-MRI-Version and X-MRI-Supported
  std::string body;
};

class RuntimeClient {
 public:
  virtual ~RuntimeClient() = default;
  virtual Inited init(const Init& init) = 0;
  virtual SteppedAll step(const std::vector<Step>& steps) = 0;
  // `n_tokens` 0: to the end.
  virtual Listed list(uint64_t ctx, uint64_t first_token, uint64_t n_tokens) = 0;
  virtual Evicted evict(uint64_t ctx, const std::vector<mri_token_range>& ranges,
                        uint32_t granularity) = 0;
  virtual void release(uint64_t ctx) = 0;
  // Numbers in a row of logits; 0: not known.
  virtual uint64_t vocabulary() = 0;
  // All 0 over HTTP.
  virtual mri_caps caps() { return {}; }
  // Over HTTP: a call with the header once for each of `values`.
  virtual VersionAnswer ask_with_versions(const std::vector<std::string>&) { return {}; }
};

// The plugin of `bench`, opened by a host without the service `withheld`.
std::unique_ptr<RuntimeClient> local_runtime(Bench& bench, const std::string& withheld);

}  // namespace mri::conformance
