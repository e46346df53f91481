#include "core/engine/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/mri_status.h"

namespace varve {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "MRI's cancel flag is a plain number that the runtime loads atomically");

absl::StatusOr<std::unique_ptr<Session>> Session::start(const mri_runtime_v1* runtime, void* self,
                                                        uint64_t n_vocabulary,
                                                        std::span<const int32_t> prompt,
                                                        SessionOptions options) {
  if (prompt.empty())
    return absl::InvalidArgumentError("found an empty prompt; expected at least one token");
  std::unique_ptr<Session> session(new Session(runtime, self, std::move(options)));
  session->logits_.resize(n_vocabulary);
  const absl::Status status = session->init(prompt);
  if (!status.ok()) return status;
  return session;
}

Session::~Session() {
  if (ctx_ != 0) runtime_->release_context(self_, ctx_);
}

const uint32_t* Session::cancel_flag() const {
  return reinterpret_cast<const uint32_t*>(options_.cancel);
}

absl::Status Session::init(std::span<const int32_t> prompt) {
  mri_init_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seed = options_.seed;
  req.tokens = prompt.data();
  req.n_tokens = prompt.size();
  req.max_tokens = options_.max_tokens;
  req.budget_bytes = options_.budget_bytes;
  req.chunk_tokens = options_.chunk_tokens;
  req.logits = logits_.data();
  req.cancel = cancel_flag();
  if (options_.progress) {
    req.progress_user = &options_.progress;
    req.progress = [](void* user, uint64_t done, uint64_t n) {
      (*static_cast<std::function<void(uint64_t, uint64_t)>*>(user))(done, n);
    };
  }
  mri_init_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  const mri_status status = runtime_->init_context(self_, &req, &rsp, &error);
  if (status != MRI_OK) return to_status("init_context", status, error);
  ctx_ = rsp.ctx;
  n_tokens_ = prompt.size();
  usage_ = rsp.usage;
  return absl::OkStatus();
}

absl::Status Session::append(std::span<const int32_t> tokens) {
  mri_step_seq seq{};
  seq.ctx = ctx_;
  seq.tokens = tokens.data();
  seq.n_tokens = tokens.size();
  seq.logits = logits_.data();
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.step_id = ++n_steps_;
  req.seqs = &seq;
  req.n_seqs = 1;
  req.cancel = cancel_flag();
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  mri_status status = runtime_->forward_step(self_, &req, &rsp, &error);
  if (status == MRI_OK) status = seq.status;
  if (status != MRI_OK) return to_status("forward_step", status, error);
  n_tokens_ += tokens.size();
  usage_ = rsp.usage;
  return absl::OkStatus();
}

absl::Status Session::forget(uint64_t first, uint64_t count) {
  const mri_token_range range{first, count};
  mri_evict_req req{};
  req.hdr.struct_size = sizeof(req);
  req.ranges = &range;
  req.n_ranges = 1;
  req.granularity = MRI_EVICT_TOKEN;
  mri_evict_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  const mri_status status = runtime_->evict_kv(self_, ctx_, &req, &rsp, &error);
  return status == MRI_OK ? absl::OkStatus() : to_status("evict_kv", status, error);
}

absl::StatusOr<std::vector<mri_kv_block_info>> Session::blocks() const {
  std::vector<mri_kv_block_info> blocks;
  mri_summary_req req{};
  req.hdr.struct_size = sizeof(req);
  req.what = MRI_SUMMARY_BLOCKS;
  mri_status status = MRI_E_SPACE;
  mri_error error = empty_error();
  // The first call tells how many there are.
  for (int attempt = 0; attempt < 2 && status == MRI_E_SPACE; ++attempt) {
    req.out = blocks.data();
    req.capacity = blocks.size();
    mri_summary_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    status = runtime_->get_kv_summary(self_, ctx_, &req, &rsp, &error);
    if (status != MRI_OK && status != MRI_E_SPACE) break;
    if (rsp.n_out > n_tokens_) {
      return absl::InternalError(absl::StrCat("get_kv_summary: the runtime tells of ", rsp.n_out,
                                              " blocks; expected at most one per token"));
    }
    blocks.resize(rsp.n_out);
  }
  if (status != MRI_OK) return to_status("get_kv_summary", status, error);
  return blocks;
}

absl::StatusOr<Answer> generate(Session& session, const Text& text, Sampler& sampler,
                                uint64_t max_tokens,
                                const std::function<void(std::string_view)>& on_text) {
  Answer answer;
  answer.finish = Finish::kLength;
  size_t n_told = 0;
  while (answer.n_tokens < max_tokens) {
    const absl::StatusOr<int32_t> token = sampler.sample(session.logits());
    // A grammar that allows nothing more has ended the answer.
    const bool is_complete = token.status().code() == absl::StatusCode::kOutOfRange;
    if (!token.ok() && !is_complete) return token.status();
    if (is_complete || text.is_end(*token)) {
      answer.finish = Finish::kEnd;
      break;
    }
    const absl::StatusOr<std::string> bytes = text.detokenize({&*token, 1});
    if (!bytes.ok()) return bytes.status();
    answer.text += *bytes;
    ++answer.n_tokens;
    const std::string_view whole = std::string_view(answer.text).substr(n_told);
    const size_t n_ready = complete_utf8(whole);
    if (n_ready > 0) on_text(whole.substr(0, n_ready));
    n_told += n_ready;
    if (answer.n_tokens == max_tokens) break;  // the logits after the last token are not needed
    const absl::Status status = session.append({&*token, 1});
    if (!status.ok()) return status;
  }
  if (n_told < answer.text.size()) on_text(std::string_view(answer.text).substr(n_told));
  return answer;
}

}  // namespace varve
