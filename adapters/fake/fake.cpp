// A runtime without weights. A token is a byte; the answer to a chat is the last line of the last
// user message, to any other prompt the prompt itself, over and over. Everything else behaves as
// the contract of mri/kind/runtime.h says.
//
// Memory (mri/ext/memory.h): a kept prefix is a copy of its tokens with a price of its own, so
// nothing is really shared; a shrunk context counts all its tokens as warm.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "mri/sdk/runtime.hpp"

namespace varve_fake {

constexpr int32_t kStart = 256;  // opens a message
constexpr int32_t kEnd = 257;    // closes a message and ends an answer
constexpr uint64_t kVocabulary = 258;
constexpr std::string_view kStartText = "<|start|>";
constexpr std::string_view kEndText = "<|end|>";
constexpr float kSureLogit = 20;  // the others are 0: a draw at temperature 1 agrees too
constexpr uint64_t kDefaultChunkTokens = 4096;
constexpr uint64_t kBytesPerToken = 64;  // of pretended keys and values in bf16

constexpr mri_param_desc kParams[] = {
    mri::param_string("model_path", "", nullptr, "a file that must be readable; empty: none"),
    mri::param_int("trained_tokens", 4096, 1, 1 << 24, "longest context, tokens"),
    mri::param_int("hot_tokens", 64, 0, 1 << 24, "newest tokens that count as hot; others as warm"),
    mri::param_int("delay_ms", 0, 0, 60000, "pause in each prompt chunk and step, ms"),
    mri::param_int("token_us", 0, 0, 1 << 20, "pause for each token of a step, us"),
    mri::param_int("kv_bytes_max", 0, 0, int64_t{1} << 40, "memory of all contexts; 0: no limit"),
    mri::param_int("poison_token", -1, -1, kVocabulary - 1, "a step with this token fails"),
    mri::param_string("record_path", "", nullptr,
                      "file that gets a line for each call; empty: none"),
};

struct Context {
  std::mutex mutex;
  std::vector<int32_t> tokens;
  std::vector<bool> evicted;    // by position
  std::vector<int32_t> answer;  // what to say, token by token
  bool repeats = false;         // starts again after the answer's end
  uint64_t n_prompt = 0;
  uint64_t n_max = 0;
  uint64_t epoch = 0;
  uint64_t n_shrunk = 0;  // first tokens that are warm however new they are
  uint64_t bytes = 0;     // as last counted
  bool summary_is_legal = true;

  int32_t next_token() const {
    if (answer.empty() || tokens.size() < n_prompt) return kEnd;
    const uint64_t said = tokens.size() - n_prompt;
    return repeats || said < answer.size() ? answer[said % answer.size()] : kEnd;
  }

  // The last line of the last closed message before the open one, of the first `n` tokens.
  void prepare_answer(uint64_t n) {
    n_prompt = n;
    const auto first = tokens.begin();
    const auto last = std::make_reverse_iterator(first + static_cast<std::ptrdiff_t>(n));
    const auto end = std::find(last, tokens.rend(), kEnd).base();
    repeats = end == first;
    if (repeats) {
      answer.assign(first, last.base());
      return;
    }
    const auto line = std::find_if(std::make_reverse_iterator(end - 1), tokens.rend(),
                                   [](int32_t t) { return t == '\n' || t == kStart; });
    answer.assign(line.base(), end - 1);
  }
};

struct Kept {
  std::vector<mri_prefix_key> keys;
  std::vector<int32_t> tokens;
  uint64_t n_prompt = 0;  // 0: the prompt goes on behind it
  bool is_pinned = false;
  uint64_t bytes() const { return tokens.size() * kBytesPerToken; }
};

bool is_equal(const mri_prefix_key& a, const mri_prefix_key& b) {
  return std::equal(a.bytes, a.bytes + sizeof(a.bytes), b.bytes);
}

bool is_cancelled(const uint32_t* cancel) {
  return cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0;
}

class Fake {
 public:
  Fake(mri::Host, const mri::Params& params)
      : trained_tokens_(params.get<uint64_t>("trained_tokens")),
        hot_tokens_(params.get<uint64_t>("hot_tokens")),
        delay_ms_(params.get<uint32_t>("delay_ms")),
        token_us_(params.get<uint32_t>("token_us")),
        kv_bytes_max_(params.get<uint64_t>("kv_bytes_max")),
        poison_token_(params.get<int32_t>("poison_token")) {
    const auto path = params.get<std::string>("model_path");
    if (!path.empty() && !std::ifstream(path)) {
      throw mri::Error(MRI_E_NOT_FOUND, path + ": found no readable file; expected a model");
    }
    const auto record_path = params.get<std::string>("record_path");
    if (!record_path.empty()) record_.open(record_path, std::ios::app);
  }

  void init_context(const mri_init_req& req, mri_init_rsp& rsp) {
    auto context = std::make_shared<Context>();
    const uint64_t limit = req.max_tokens == 0 ? trained_tokens_ : req.max_tokens;
    context->n_max = std::min(limit, trained_tokens_);
    require_room(*context, req.n_tokens);
    const uint64_t chunk = req.chunk_tokens == 0 ? kDefaultChunkTokens : req.chunk_tokens;
    for (uint64_t done = 0; done < req.n_tokens;) {
      const uint64_t n = std::min(chunk, req.n_tokens - done);
      require_tokens(req.tokens + done, n);
      context->tokens.insert(context->tokens.end(), req.tokens + done, req.tokens + done + n);
      pause(req.cancel);
      done += n;
      ++rsp.n_chunks;
      if (req.progress != nullptr) req.progress(req.progress_user, done, req.n_tokens);
    }
    context->evicted.resize(context->tokens.size());
    if (req.budget_bytes != 0 && usage(*context).bf16_bytes > req.budget_bytes) {
      throw mri::Error(MRI_E_NOMEM, "the context is larger than its budget of " +
                                        std::to_string(req.budget_bytes) + " bytes");
    }
    context->prepare_answer(context->tokens.size());
    if (req.logits != nullptr) write_logits(*context, req.logits);
    rsp.usage = usage(*context);
    const std::lock_guard lock(mutex_);
    recount(*context);
    rsp.ctx = ++last_context_;
    contexts_[rsp.ctx] = context;
    record("init_context tokens=" + std::to_string(req.n_tokens) + " chunk=" +
           std::to_string(req.chunk_tokens) + " max_tokens=" + std::to_string(req.max_tokens));
  }

  void forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
    pause(req.cancel);
    for (uint64_t i = 0; i < req.n_seqs; ++i) {
      mri_step_seq& seq = req.seqs[i];
      seq.status = mri::guard(err, [&] { step_one(seq, rsp); });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rsp.n_tokens * token_us_));
    const std::lock_guard lock(mutex_);
    record("forward_step sequences=" + std::to_string(req.n_seqs) +
           " tokens=" + std::to_string(rsp.n_tokens));
  }

  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
    const std::shared_ptr<Context> context = find(ctx);
    const std::lock_guard lock(context->mutex);
    if (!context->summary_is_legal) {
      throw mri::Error(MRI_E_STATE, "get_kv_summary is legal only after init_context or evict_kv");
    }
    mri::Writer<mri_kv_block_info> blocks(req.out, req.capacity, &rsp.n_out);
    const uint64_t size = context->tokens.size();
    const uint64_t rest = size - std::min(size, req.first_token);
    const uint64_t end = size - rest + (req.n_tokens == 0 ? rest : std::min(rest, req.n_tokens));
    for (uint64_t at = req.first_token / MRI_BLOCK_TOKENS * MRI_BLOCK_TOKENS; at < end;
         at += MRI_BLOCK_TOKENS) {
      blocks.push(block_info(*context, at));
    }
    rsp.kv_epoch = context->epoch;
    rsp.usage = usage(*context);
    return blocks.status();
  }

  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    const std::shared_ptr<Context> context = find(ctx);
    if (req.granularity > MRI_EVICT_SEGMENT) throw mri::Error(MRI_E_ARG, "unknown granularity");
    const std::lock_guard lock(context->mutex);
    const uint64_t before = resident_bytes(*context);
    for (uint64_t i = 0; i < req.n_ranges; ++i)
      rsp.n_evicted += evict(*context, req.ranges[i], req.granularity);
    rsp.bytes_freed = before - resident_bytes(*context);
    rsp.confirm_state = MRI_CONFIRM_DONE;
    rsp.confirm_epoch = ++context->epoch;
    context->summary_is_legal = true;
    const std::lock_guard total_lock(mutex_);
    recount(*context);
  }

  void release_context(uint64_t ctx) {
    const std::lock_guard lock(mutex_);
    const auto it = contexts_.find(ctx);
    if (it == contexts_.end()) return;
    used_bytes_ -= it->second->bytes;
    contexts_.erase(it);
    record("release_context");
  }

  void reuse(const mri_reuse_req& req, mri_reuse_rsp& rsp) {
    const std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      uint64_t n = 0;
      while (n < std::min<uint64_t>(req.n_keys, it->keys.size()) &&
             is_equal(it->keys[n], req.keys[n]))
        ++n;
      if (n * MRI_BLOCK_TOKENS <= rsp.n_tokens) continue;
      rsp.n_tokens = n * MRI_BLOCK_TOKENS;
      best = it;
    }
    if (best == kept_.end()) return;
    auto context = std::make_shared<Context>();
    context->n_max =
        std::min(req.max_tokens == 0 ? trained_tokens_ : req.max_tokens, trained_tokens_);
    context->tokens.assign(best->tokens.data(), best->tokens.data() + rsp.n_tokens);
    context->evicted.resize(rsp.n_tokens);
    if (best->n_prompt > 0 && best->n_prompt <= rsp.n_tokens)
      context->prepare_answer(best->n_prompt);
    kept_.splice(kept_.end(), kept_, best);  // the least recently used is in front
    recount(*context);
    rsp.ctx = ++last_context_;
    contexts_[rsp.ctx] = context;
    record("reuse tokens=" + std::to_string(rsp.n_tokens));
  }

  void keep(uint64_t ctx, std::span<const mri_prefix_key> keys, uint32_t flags) {
    const std::shared_ptr<Context> context = find(ctx);
    const std::lock_guard lock(context->mutex);
    const uint64_t n = std::min(keys.size(), context->tokens.size() / MRI_BLOCK_TOKENS);
    if (n == 0) return;
    Kept kept{{keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(n)},
              {},
              0,
              (flags & MRI_KEEP_PINNED) != 0};
    kept.tokens.assign(context->tokens.data(), context->tokens.data() + n * MRI_BLOCK_TOKENS);
    if (context->n_prompt <= kept.tokens.size()) kept.n_prompt = context->n_prompt;
    const std::lock_guard total_lock(mutex_);
    kept.is_pinned = drop(keys[n - 1]) || kept.is_pinned;
    if (!make_room(kept.bytes())) return;
    used_bytes_ += kept.bytes();
    kept_.push_back(std::move(kept));
  }

  void forget(const mri_prefix_key& last_key) {
    const std::lock_guard lock(mutex_);
    drop(last_key);
  }

  uint64_t shrink(uint64_t ctx, uint64_t wanted_bytes) {
    const std::shared_ptr<Context> context = ctx == 0 ? nullptr : find(ctx);
    std::unique_lock<std::mutex> context_lock;
    if (context != nullptr) context_lock = std::unique_lock(context->mutex);
    const std::lock_guard lock(mutex_);
    const uint64_t before = used_bytes_;
    while (before - used_bytes_ < wanted_bytes && drop_oldest()) continue;
    if (context != nullptr && before - used_bytes_ < wanted_bytes) {
      context->n_shrunk = context->tokens.size();
      recount(*context);
    }
    return before - used_bytes_;
  }

  void memory_usage(mri_memory_usage& out) {
    const std::lock_guard lock(mutex_);
    out.budget_bytes = kv_bytes_max_;
    out.used_bytes = used_bytes_;
    for (const Kept& kept : kept_) out.kept_bytes += kept.bytes();
    out.kept_prefixes = kept_.size();
    out.contexts = contexts_.size();
  }

  void model_info(mri_model_info& info) const {
    info.vocab_size = kVocabulary;
    info.trained_tokens = info.max_tokens = trained_tokens_;
    info.kv_bytes_per_token_bf16 = kBytesPerToken;
    info.n_layers = info.n_heads = info.n_kv_heads = 1;
    info.head_dim = info.n_embd = 16;
    info.n_ff = 64;
    std::string_view("fake").copy(info.name, sizeof(info.name) - 1);
    std::string_view("echo").copy(info.architecture, sizeof(info.architecture) - 1);
  }

  std::vector<int32_t> tokenize(std::string_view text, bool, bool parse_special) const {
    std::vector<int32_t> tokens;
    while (!text.empty()) {
      if (parse_special && text.starts_with(kStartText)) {
        tokens.push_back(kStart);
        text.remove_prefix(kStartText.size());
      } else if (parse_special && text.starts_with(kEndText)) {
        tokens.push_back(kEnd);
        text.remove_prefix(kEndText.size());
      } else {
        tokens.push_back(static_cast<unsigned char>(text.front()));
        text.remove_prefix(1);
      }
    }
    return tokens;
  }

  std::string detokenize(std::span<const int32_t> tokens, bool special) const {
    require_tokens(tokens.data(), tokens.size());
    std::string text;
    for (const int32_t token : tokens) {
      if (token < kStart) text += static_cast<char>(token);
      if (special && token == kStart) text += kStartText;
      if (special && token == kEnd) text += kEndText;
    }
    return text;
  }

  std::string chat(std::span<const mri_chat_message> messages, bool add_generation_prompt) const {
    std::string text;
    for (const mri_chat_message& message : messages) {
      text.append(kStartText).append(message.role).append("\n").append(message.content);
      text.append(kEndText).append("\n");
    }
    if (add_generation_prompt) text.append(kStartText).append("assistant\n");
    return text;
  }

  bool is_end(int32_t token) const { return token == kEnd; }

 private:
  static void require_tokens(const int32_t* tokens, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      if (tokens[i] < 0 || static_cast<uint64_t>(tokens[i]) >= kVocabulary) {
        throw mri::Error(MRI_E_ARG, "found token " + std::to_string(tokens[i]) +
                                        "; expected 0 to " + std::to_string(kVocabulary - 1));
      }
    }
  }

  static void require_room(const Context& context, uint64_t n_more) {
    if (n_more > context.n_max - context.tokens.size()) {
      throw mri::Error(MRI_E_ARG, "the context would have more than " +
                                      std::to_string(context.n_max) + " tokens");
    }
  }

  static void write_logits(const Context& context, float* logits) {
    std::fill(logits, logits + kVocabulary, 0.0f);
    logits[context.next_token()] = kSureLogit;
  }

  void step_one(mri_step_seq& seq, mri_step_rsp& rsp) {
    const std::shared_ptr<Context> context = find(seq.ctx);
    const std::lock_guard lock(context->mutex);
    require_tokens(seq.tokens, seq.n_tokens);
    require_room(*context, seq.n_tokens);
    if (std::find(seq.tokens, seq.tokens + seq.n_tokens, poison_token_) !=
        seq.tokens + seq.n_tokens)
      throw mri::Error(MRI_E_INTERNAL, "the poison token");
    {
      const std::lock_guard lock_total(mutex_);
      if (!make_room(seq.n_tokens * kBytesPerToken))
        throw mri::Error(MRI_E_NOMEM, "more than kv_bytes_max");
    }
    context->summary_is_legal = false;
    seq.position = context->tokens.size();
    for (uint64_t t = 0; t < seq.n_tokens; ++t) {
      context->tokens.push_back(seq.tokens[t]);
      context->evicted.push_back(false);
      const bool ends_prompt = t + 1 == seq.n_tokens && (seq.flags & MRI_STEP_PROMPT) != 0 &&
                               (seq.flags & MRI_STEP_MORE) == 0;
      if (ends_prompt) context->prepare_answer(context->tokens.size());
      if (seq.logits == nullptr) continue;
      write_logits(*context, seq.logits + (seq.all_logits != 0 ? t * kVocabulary : 0));
    }
    rsp.n_tokens += seq.n_tokens;
    const mri_kv_usage one = usage(*context);
    const std::lock_guard lock_total(mutex_);
    recount(*context);
    rsp.usage.hot_bytes += one.hot_bytes;
    rsp.usage.warm_bytes += one.warm_bytes;
    rsp.usage.bf16_bytes += one.bf16_bytes;
    rsp.usage.hot_tokens += one.hot_tokens;
    rsp.usage.warm_tokens += one.warm_tokens;
  }

  bool is_hot(const Context& context, uint64_t position) const {
    return position >= context.n_shrunk && position + hot_tokens_ >= context.tokens.size();
  }

  // A hot token takes what bf16 takes, a warm one half.
  mri_kv_usage usage(const Context& context) const {
    mri_kv_usage usage{};
    for (uint64_t t = 0; t < context.tokens.size(); ++t) {
      if (context.evicted[t]) continue;
      ++(is_hot(context, t) ? usage.hot_tokens : usage.warm_tokens);
    }
    usage.hot_bytes = usage.hot_tokens * kBytesPerToken;
    usage.warm_bytes = usage.warm_tokens * kBytesPerToken / 2;
    usage.bf16_bytes = (usage.hot_tokens + usage.warm_tokens) * kBytesPerToken;
    return usage;
  }

  uint64_t resident_bytes(const Context& context) const {
    const mri_kv_usage now = usage(context);
    return now.hot_bytes + now.warm_bytes;
  }

  mri_kv_block_info block_info(const Context& context, uint64_t first) const {
    mri_kv_block_info info{first / MRI_BLOCK_TOKENS + 1, first, 0, MRI_TIER_WARM, 0};
    const uint64_t end = std::min<uint64_t>(first + MRI_BLOCK_TOKENS, context.tokens.size());
    for (uint64_t t = first; t < end; ++t) info.n_tokens += context.evicted[t] ? 0 : 1;
    if (is_hot(context, first)) info.tier = MRI_TIER_HOT;
    info.bytes = info.n_tokens * (info.tier == MRI_TIER_HOT ? kBytesPerToken : kBytesPerToken / 2);
    return info;
  }

  static uint64_t evict(Context& context, const mri_token_range& range, uint32_t granularity) {
    const uint64_t size = context.tokens.size();
    uint64_t first = std::min(range.first, size);
    uint64_t end = first + std::min(range.count, size - first);
    if (first == end) return 0;
    const auto widen = [&](uint64_t unit) {
      first = first / unit * unit;
      end = std::min(size, (end + unit - 1) / unit * unit);
    };
    if (granularity == MRI_EVICT_BLOCK) widen(MRI_BLOCK_TOKENS);
    if (granularity == MRI_EVICT_SEGMENT) widen(MRI_SEGMENT_TOKENS);
    if (granularity == MRI_EVICT_BLOCK_AWARE) {  // whole blocks inside the range only
      first = (first + MRI_BLOCK_TOKENS - 1) / MRI_BLOCK_TOKENS * MRI_BLOCK_TOKENS;
      end = end / MRI_BLOCK_TOKENS * MRI_BLOCK_TOKENS;
    }
    uint64_t n = 0;
    for (uint64_t t = first; t < end; ++t) {
      n += context.evicted[t] ? 0 : 1;
      context.evicted[t] = true;
    }
    return n;
  }

  void pause(const uint32_t* cancel) const {
    for (uint32_t ms = 0; ms < delay_ms_ && !is_cancelled(cancel); ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (is_cancelled(cancel)) throw mri::Error(MRI_E_CANCELLED, "cancelled by the caller");
  }

  // The following are called under mutex_.

  void recount(Context& context) {
    used_bytes_ -= context.bytes;
    context.bytes = resident_bytes(context);
    used_bytes_ += context.bytes;
  }

  bool drop(const mri_prefix_key& last_key) {
    const auto it = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
      return is_equal(kept.keys.back(), last_key);
    });
    if (it == kept_.end()) return false;
    const bool was_pinned = it->is_pinned;
    used_bytes_ -= it->bytes();
    kept_.erase(it);
    return was_pinned;
  }

  bool drop_oldest() {
    const auto it = std::find_if(kept_.begin(), kept_.end(), [](auto& k) { return !k.is_pinned; });
    if (it == kept_.end()) return false;
    drop(mri_prefix_key(it->keys.back()));
    return true;
  }

  bool make_room(uint64_t bytes) {
    while (kv_bytes_max_ != 0 && used_bytes_ + bytes > kv_bytes_max_) {
      if (!drop_oldest()) return false;
    }
    return true;
  }

  std::shared_ptr<Context> find(uint64_t ctx) {
    const std::lock_guard lock(mutex_);
    const auto it = contexts_.find(ctx);
    if (it == contexts_.end())
      throw mri::Error(MRI_E_NOT_FOUND, "no context " + std::to_string(ctx));
    return it->second;
  }

  void record(const std::string& line) {  // under mutex_
    if (record_.is_open()) record_ << line << std::endl;
  }

  const uint64_t trained_tokens_, hot_tokens_;
  const uint32_t delay_ms_, token_us_;
  const uint64_t kv_bytes_max_;
  const int32_t poison_token_;
  std::mutex mutex_;  // taken after a context's
  std::ofstream record_;
  uint64_t last_context_ = 0;
  std::map<uint64_t, std::shared_ptr<Context>> contexts_;
  std::list<Kept> kept_;     // least recently used first
  uint64_t used_bytes_ = 0;  // by contexts and kept prefixes
};

}  // namespace varve_fake

MRI_PLUGIN(runtime, "varve.fake", "0.1.0", varve_fake::kParams, varve_fake::Fake);
