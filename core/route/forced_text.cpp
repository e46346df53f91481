#include "core/route/forced_text.h"

#include <algorithm>
#include <chrono>

#include "core/engine/mri_status.h"

namespace varve {
namespace {

constexpr double kStepSeconds = 0.05;
constexpr uint64_t kPieceTokensMin = 8, kPieceTokensMax = 512;

}  // namespace

absl::StatusOr<std::unique_ptr<ForcedText>> ForcedText::read(const Where& where,
                                                             std::span<const int32_t> prompt,
                                                             uint64_t n_answer) {
  if (prompt.empty())
    return absl::InvalidArgumentError("found an empty prompt; expected at least one token");
  std::unique_ptr<ForcedText> text(new ForcedText(where));
  absl::Status status = text->open(prompt.size() + n_answer);
  uint64_t piece = kPieceTokensMin;
  for (size_t at = 0; at < prompt.size() && status.ok();) {
    const std::span<const int32_t> tokens =
        prompt.subspan(at, std::min<size_t>(piece, prompt.size() - at));
    at += tokens.size();
    const bool is_last = at == prompt.size();
    const auto begin = std::chrono::steady_clock::now();
    status = text->step(tokens, MRI_STEP_PROMPT | (is_last ? 0 : MRI_STEP_MORE), is_last);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const bool is_slow = took.count() > kStepSeconds;
    piece = std::clamp(is_slow ? piece / 2 : piece * 2, kPieceTokensMin, kPieceTokensMax);
  }
  if (!status.ok()) return status;
  return text;
}

ForcedText::~ForcedText() {
  if (context_ != 0) where_.runtime.table->release_context(where_.runtime.self, context_);
}

absl::Status ForcedText::open(uint64_t tokens_max) {
  mri_init_req req{};
  req.hdr.struct_size = sizeof(req);
  req.max_tokens = tokens_max;
  mri_init_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  const mri_status status =
      where_.runtime.table->init_context(where_.runtime.self, &req, &rsp, &error);
  if (status != MRI_OK) return to_status("init_context", status, error);
  context_ = rsp.ctx;
  return absl::OkStatus();
}

absl::Status ForcedText::step(std::span<const int32_t> tokens, uint32_t flags, bool wants_logits) {
  if (where_.before_step) {
    const absl::Status status = where_.before_step();
    if (!status.ok()) return status;
  }
  mri_step_seq seq{};
  seq.ctx = context_;
  seq.tokens = tokens.data();
  seq.n_tokens = tokens.size();
  seq.logits = wants_logits ? logits_.data() : nullptr;
  seq.flags = flags;
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.step_id = ++n_steps_;
  req.seqs = &seq;
  req.n_seqs = 1;
  req.cancel = reinterpret_cast<const uint32_t*>(where_.cancel);
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  const Turnstile::Pass pass(*where_.turnstile, 0);
  if (where_.cancel != nullptr && where_.cancel->load() != 0)
    return absl::CancelledError("the replay was stopped");
  mri_status status = where_.runtime.table->forward_step(where_.runtime.self, &req, &rsp, &error);
  if (status == MRI_OK) status = seq.status;
  return status == MRI_OK ? absl::OkStatus() : to_status("forward_step", status, error);
}

}  // namespace varve
