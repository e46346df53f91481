// A runtime without a model: each method does what its request's numbers ask for.
#include <atomic>
#include <thread>

#include "mri/sdk/kv_tier.hpp"
#include "mri/sdk/runtime.hpp"

namespace {

constexpr mri_param_desc kParams[] = {
    mri::param_bool("confirm", true, "confirm evictions, when the host knows how")};

class Probe {
 public:
  Probe(mri::Host host, const mri::Params& params)
      : host_(host),
        confirm_(params.get<bool>("confirm")),
        tier_(host.peer<mri_kv_tier_v1>(MRI_KV_TIER)) {
    // The stack's other plugins are active by now.
    if (tier_ && decided_block() != 5) throw mri::Error(MRI_E_INTERNAL, "kv_tier is not ready");
  }

  // The number of the context is the seed.
  void init_context(const mri_init_req& req, mri_init_rsp& rsp) { rsp.ctx = req.seed; }

  // Waits for the cancel flag. step_id 666 spoils a sequence's status.
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp) {
    while (req.cancel != nullptr && std::atomic_ref(*const_cast<uint32_t*>(req.cancel)) == 0) {
      std::this_thread::yield();
    }
    if (req.step_id == 666) req.seqs[0].status = 4242;
    rsp.n_tokens = req.n_seqs;
  }

  void get_kv_summary(uint64_t, const mri_summary_req&, mri_summary_rsp& rsp) {
    rsp.kv_epoch = tier_ ? decided_block() : 0;
  }

  void evict_kv(uint64_t, const mri_evict_req& req, mri_evict_rsp& rsp) {
    rsp.n_evicted = req.n_ranges;
#if MRI_TARGET_VERSION >= MRI_1_1
    rsp.confirm_state = confirm_ ? req.reason : MRI_CONFIRM_UNKNOWN;
    rsp.confirm_epoch = 77;
#endif
  }

  void release_context(uint64_t) { throw std::runtime_error("contained too"); }

  void model_info(mri_model_info& info) {
    std::fill(std::begin(info.name), std::end(info.name), 'x');  // no end
    info.vocab_size = 3;
  }
  std::vector<int32_t> tokenize(std::string_view text, bool, bool) {
    return std::vector<int32_t>(text.begin(), text.end());
  }
  std::string detokenize(std::span<const int32_t> tokens, bool) {
    return std::string(tokens.begin(), tokens.end());
  }
  std::string chat(std::span<const mri_chat_message> messages, bool) { return messages[0].content; }
  bool is_end(int32_t token) { return token == 0; }

 private:
  uint64_t decided_block() {
    mri_tier_action action{};
    mri_tier_req req{};
    req.hdr.struct_size = sizeof(req);
    mri_tier_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    rsp.actions = &action;
    rsp.capacity = 1;
    mri_error err{};
    err.struct_size = sizeof(err);
    if (tier_.table->decide(tier_.self, &req, &rsp, &err) != MRI_OK)
      throw mri::Error(err.status, err.msg);
    return action.block_id;
  }

  mri::Host host_;
  [[maybe_unused]] bool confirm_;
  mri::Peer<mri_kv_tier_v1> tier_;
};

}  // namespace

MRI_PLUGIN(runtime, "org.varve.test.runtime", "1.0.0", kParams, Probe);
