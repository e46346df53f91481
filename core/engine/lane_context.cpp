#include "core/engine/lane_context.h"

#include "core/engine/mri_status.h"

namespace varve {
namespace {

template <class T>
T sized() {
  T value{};
  value.hdr.struct_size = sizeof(T);
  return value;
}

}  // namespace

uint64_t LaneRuntime::shrink(uint64_t ctx, uint64_t wanted_bytes) const {
  uint64_t freed = 0;
  if (!memory) return 0;
  mri_error error = empty_error();
  return memory.table->shrink(memory.self, ctx, wanted_bytes, &freed, &error) == MRI_OK ? freed : 0;
}

mri_memory_usage LaneRuntime::memory_usage() const {
  auto usage = sized<mri_memory_usage>();
  mri_error error = empty_error();
  if (!memory || memory.table->usage(memory.self, &usage, &error) != MRI_OK) return {};
  return usage;
}

absl::Status LaneRuntime::step(std::span<mri_step_seq> seqs, uint64_t step_id,
                               const uint32_t* cancel, mri_kv_usage* usage,
                               mri_error* error) const {
  auto req = sized<mri_step_req>();
  req.step_id = step_id;
  req.seqs = seqs.data();
  req.n_seqs = seqs.size();
  req.cancel = cancel;
  auto rsp = sized<mri_step_rsp>();
  *error = empty_error();
  const mri_status status = runtime.table->forward_step(runtime.self, &req, &rsp, error);
  *usage = rsp.usage;
  return status == MRI_OK ? absl::OkStatus() : to_status("forward_step", status, *error);
}

absl::StatusOr<LaneContext::Opened> LaneContext::open(const LaneRuntime& runtime,
                                                      std::span<const mri_prefix_key> keys,
                                                      uint64_t tokens_max, uint64_t seed) {
  mri_error error = empty_error();
  if (runtime.memory && !keys.empty()) {
    auto req = sized<mri_reuse_req>();
    req.keys = keys.data();
    req.n_keys = keys.size();
    req.max_tokens = tokens_max;
    auto rsp = sized<mri_reuse_rsp>();
    const mri_status status = runtime.memory.table->reuse(runtime.memory.self, &req, &rsp, &error);
    if (status == MRI_OK && rsp.ctx != 0)
      return Opened{LaneContext(runtime, rsp.ctx), rsp.n_tokens};
    error = empty_error();  // a prefix that cannot be had is read again
  }
  auto req = sized<mri_init_req>();
  req.max_tokens = tokens_max;
  req.seed = seed;
  auto rsp = sized<mri_init_rsp>();
  const mri_status status =
      runtime.runtime.table->init_context(runtime.runtime.self, &req, &rsp, &error);
  if (status != MRI_OK) return to_status("init_context", status, error);
  return Opened{LaneContext(runtime, rsp.ctx), 0};
}

void LaneContext::release() {
  if (number_ == 0) return;
  const auto& runtime = runtime_->runtime;
  runtime.table->release_context(runtime.self, std::exchange(number_, 0));
}

void LaneContext::keep(std::span<const mri_prefix_key> keys, bool is_pinned) {
  if (number_ == 0 || !runtime_->memory || keys.empty()) return;
  mri_error error = empty_error();
  runtime_->memory.table->keep(runtime_->memory.self, number_, keys.data(), keys.size(),
                               is_pinned ? MRI_KEEP_PINNED : 0, &error);
}

// A summary is legal after an eviction: of nothing, here.
mri_kv_usage LaneContext::usage() {
  if (number_ == 0) return {};
  const auto& runtime = runtime_->runtime;
  mri_error error = empty_error();
  const auto evict = sized<mri_evict_req>();
  auto evicted = sized<mri_evict_rsp>();
  if (runtime.table->evict_kv(runtime.self, number_, &evict, &evicted, &error) != MRI_OK) return {};
  auto req = sized<mri_summary_req>();
  req.what = MRI_SUMMARY_BLOCKS;
  auto rsp = sized<mri_summary_rsp>();
  const mri_status status =
      runtime.table->get_kv_summary(runtime.self, number_, &req, &rsp, &error);
  return status == MRI_OK || status == MRI_E_SPACE ? rsp.usage : mri_kv_usage{};
}

bool LaneContext::enable_timings() {
  if (number_ == 0 || !runtime_->timings) return false;
  mri_error error = empty_error();
  return runtime_->timings.table->enable(runtime_->timings.self, number_, 1, &error) == MRI_OK;
}

bool LaneContext::read_timings(mri_timings* out) {
  if (number_ == 0 || !runtime_->timings) return false;
  *out = sized<mri_timings>();
  mri_error error = empty_error();
  return runtime_->timings.table->read(runtime_->timings.self, number_, out, &error) == MRI_OK;
}

}  // namespace varve
