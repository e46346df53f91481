// Dense attention whose first `failures` plans at or behind `from_position` fail.
#include <atomic>
#include <cstring>

#include "mri/ext/kernels.h"
#include "mri/sdk/attention.hpp"

namespace {

constexpr mri_param_desc kParams[] = {
    mri::param_int("failures", 1, 0, 1000, "plans that fail"),
    mri::param_int("from_position", 1, 0, 1 << 20, "first position of the queries that fail"),
};

class Flaky {
 public:
  Flaky(mri::Host host, const mri::Params& params)
      : host_(host),
        left_(params.get<int>("failures")),
        from_(params.get<uint32_t>("from_position")) {}

  mri_status plan(const mri_attn_req& req, mri_attn_plan& plan) {
    if (req.seqs[0].position >= from_ && left_.fetch_sub(1) > 0)
      throw mri::Error(MRI_E_DEVICE, "flaky: failing as asked");
    mri::Writer<mri_attn_item> items(plan.items, plan.items_capacity, &plan.n_items);
    mri::Writer<mri_attn_entry> entries(plan.entries, plan.entries_capacity, &plan.n_entries);
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      const mri_attn_seq& seq = req.seqs[s];
      for (uint32_t first = 0; first < seq.n_queries;) {
        const uint32_t position = seq.position + first;
        const uint32_t n = std::min(seq.n_queries - first, 32 - position % 32);
        for (uint32_t head = 0; head < req.n_kv_heads; ++head) {
          items.push({s, head, first, n, static_cast<uint32_t>(plan.n_entries), 1, 0, 0});
          entries.push(
              {MRI_ATTN_BLOCKS, 0, position / 32 + 1, static_cast<int32_t>(position / 32), 0.0f});
        }
        first += n;
      }
    }
    return items.status() == MRI_OK ? entries.status() : items.status();
  }

  void run(const mri_attn_req& req, const mri_attn_plan& plan) {
    const mri_kernels_v1& kernels = host_.kernels();
    const uint32_t group = req.n_heads / req.n_kv_heads;
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      const mri_attn_item& item = plan.items[i];
      const size_t row = req.seqs[item.seq].first_row + item.first_query;
      const size_t at = row * req.n_heads + item.kv_head * group;
      kernels.attend(kernels.self, &req, &item, plan.entries + item.first_entry, item.n_entries,
                     req.o + at * req.head_dim, req.n_heads * req.head_dim, req.lse + at,
                     req.n_heads);
    }
  }

 private:
  mri::Host host_;
  std::atomic<int> left_;
  const uint32_t from_;
};

}  // namespace

MRI_PLUGIN(attention, "dev.varve.test.flaky", "1.0.0", kParams, Flaky);
