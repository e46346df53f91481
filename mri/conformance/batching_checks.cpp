// A batching policy: its picks keep the step's limits, depend on the request alone, and nobody
// waits for ever.
#include <set>

#include "mri/conformance/opened.h"
#include "mri/conformance/random.h"
#include "mri/kind/batching.h"

namespace mri::conformance {
namespace {

struct Case {
  std::vector<mri_batch_request> requests;
  mri_batch_req req = sized<mri_batch_req>();

  Case(Random& random, uint64_t n_waiting, uint64_t n_running) {
    for (uint64_t i = 0; i < n_waiting + n_running; ++i) {
      mri_batch_request r{};
      r.id = 1 + 3 * i;
      r.running = i >= n_waiting ? 1 : 0;
      r.age_us = random.below(20'000'000);
      r.prompt_tokens_left = r.running != 0 && random.chance(70) ? 0 : 1 + random.below(4000);
      r.context_tokens = r.running != 0 ? 1 + random.below32(8000) : 0;
      r.kv_bytes = uint64_t{r.context_tokens} * 512;
      r.deadline_us = random.chance(70) ? UINT64_MAX : random.below(60'000'000);
      r.priority = random.below32(4);
      requests.push_back(r);
    }
    std::sort(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(n_waiting),
              [](auto& a, auto& b) { return a.age_us > b.age_us; });
    req.step_tokens_max = 1 + random.below(2048);
    req.kv_bytes_free = random.below(uint64_t{1} << 28);
    req.sequences_max = static_cast<uint32_t>(n_running + 1 + random.below(16));
    point();
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  void point() {
    req.requests = requests.data();
    req.n_requests = requests.size();
  }
};

class Policy {
 public:
  explicit Policy(Bench& bench)
      : bench_(bench), plugin_(bench), table_(plugin_.table<mri_batching_v1>(MRI_BATCHING)) {}

  mri_status next(const Case& c, uint64_t capacity, std::vector<mri_batch_pick>* picks,
                  uint64_t* n) {
    Guarded<mri_batch_pick> room(capacity);
    mri_batch_rsp rsp = sized<mri_batch_rsp>();
    rsp.picks = room.data();
    rsp.capacity = capacity;
    const mri_status status = call(bench_, "next_step", [&](mri_error* e) {
      return table_.next_step(plugin_.self(), &c.req, &rsp, e);
    });
    bench_.report->expect(room.is_intact(), "next_step wrote outside the picks");
    *n = rsp.n_picks;
    if (status != MRI_OK) return status;
    if (!bench_.report->expect(*n <= capacity, "next_step: more picks than room")) throw Stop{};
    picks->assign(room.data(), room.data() + *n);
    return status;
  }

  std::vector<mri_batch_pick> next(const Case& c) {
    std::vector<mri_batch_pick> picks;
    uint64_t n = 0;
    const mri_status status = next(c, c.requests.size(), &picks, &n);
    bench_.report->expect(status == MRI_OK,
                          "next_step with room for each request: status " + std::to_string(status));
    return picks;
  }

 private:
  Bench& bench_;
  Opened plugin_;
  const mri_batching_v1& table_;
};

bool are_equal(const std::vector<mri_batch_pick>& a, const std::vector<mri_batch_pick>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.request == y.request && x.n_tokens == y.n_tokens && x.sub_batch == y.sub_batch;
         });
}

void check_limits(Bench& bench, const Case& c, const std::vector<mri_batch_pick>& picks) {
  Report& report = *bench.report;
  std::set<uint32_t> seen;
  uint64_t tokens = 0, running_before = 0;
  for (const mri_batch_request& r : c.requests) running_before += r.running;
  uint64_t running = running_before;
  for (const mri_batch_pick& pick : picks) {
    if (!report.expect(pick.request < c.requests.size(), "picks a request that does not exist"))
      return;
    const mri_batch_request& r = c.requests[pick.request];
    report.expect(seen.insert(pick.request).second, "picks a request twice");
    const uint64_t most = std::max<uint64_t>(1, r.prompt_tokens_left);
    report.expect(pick.n_tokens >= 1 && pick.n_tokens <= most,
                  "picks " + std::to_string(pick.n_tokens) + " tokens of " + std::to_string(most));
    report.expect(pick.sub_batch < picks.size(), "sub_batch " + std::to_string(pick.sub_batch) +
                                                     " of " + std::to_string(picks.size()) +
                                                     " picks");
    tokens += pick.n_tokens;
    running += r.running == 0 ? 1 : 0;
  }
  report.expect(tokens <= c.req.step_tokens_max, std::to_string(tokens) +
                                                     " tokens in a step of at most " +
                                                     std::to_string(c.req.step_tokens_max));
  report.expect(running <= std::max<uint64_t>(c.req.sequences_max, running_before),
                "more running than sequences_max");
}

void keeps_the_limits(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (int i = 0; i < 200; ++i) {
    const Case c(random, random.below(40), random.below(40));
    check_limits(bench, c, policy.next(c));
  }
}

void makes_progress(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (int i = 0; i < 200; ++i) {
    const uint64_t n_running = random.below(20);
    Case c(random, n_running == 0 ? 1 + random.below(20) : random.below(20), n_running);
    if (random.chance(20)) c.req.kv_bytes_free = 0;
    bench.report->expect(
        !policy.next(c).empty(),
        "picks nothing although " + std::to_string(c.requests.size()) + " requests are there");
  }
}

void answers_the_same_again(Bench& bench) {
  Policy one(bench), two(bench);
  Random random(bench.seed);
  for (int i = 0; i < 60; ++i) {
    const Case c(random, random.below(40), random.below(40));
    const std::vector<mri_batch_pick> first = one.next(c);
    bench.report->expect(are_equal(first, two.next(c)), "two objects answer differently");
    bench.report->expect(are_equal(first, one.next(c)), "the second answer differs from the first");
  }
}

// One request of the lowest priority, while two of the highest arrive in each step of 100 ms and
// one is served: it must have its turn within 10 minutes.
void lets_nobody_starve(Bench& bench) {
  constexpr uint64_t kStepUs = 100'000, kSteps = 6000;
  Policy policy(bench);
  Random random(bench.seed);
  Case c(random, 0, 0);
  mri_batch_request one{};
  one.prompt_tokens_left = 100;
  one.deadline_us = UINT64_MAX;
  one.id = 1;
  c.requests = {one};
  c.req.step_tokens_max = 100;
  c.req.kv_bytes_free = uint64_t{1} << 30;
  c.req.sequences_max = 1;
  one.priority = 3;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (int arrivals = 0; arrivals < 2; ++arrivals) {
      ++one.id;
      c.requests.push_back(one);
    }
    if (c.requests.size() > 200) c.requests.resize(200);  // the newest give up
    c.point();
    std::vector<mri_batch_pick> picks = policy.next(c);
    for (mri_batch_request& r : c.requests) r.age_us += kStepUs;
    std::sort(picks.begin(), picks.end(), [](auto& a, auto& b) { return a.request > b.request; });
    for (const mri_batch_pick& pick : picks) {
      if (pick.request >= c.requests.size()) throw Stop{};  // batching.legal tells
      if (c.requests[pick.request].id == 1) {
        bench.report->note("waited " + std::to_string(step / 10) + " s");
        return;
      }
      c.requests.erase(c.requests.begin() + pick.request);
    }
  }
  bench.report->fail(
      "a request of priority 0 waited 10 minutes while those of priority 3 came and went");
}

void says_how_much_room(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (int i = 0; i < 40; ++i) {
    const Case c(random, random.below(20), random.below(20));
    const std::vector<mri_batch_pick> all = policy.next(c);
    std::vector<mri_batch_pick> fitted;
    uint64_t n = 0;
    const mri_status none = policy.next(c, 0, &fitted, &n);
    bench.report->expect(none == (all.empty() ? MRI_OK : MRI_E_SPACE),
                         "without room for picks: status " + std::to_string(none));
  }
}

void serves_threads(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  const Case c(random, 20, 20);
  const std::vector<mri_batch_pick> alone = policy.next(c);
  in_four_threads(bench, 100, "answers",
                  [&](uint64_t) { return are_equal(policy.next(c), alone); });
}

void survives_any_request(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (int i = 0; i < 300; ++i) {
    Case c(random, random.below(30), random.below(30));
    for (mri_batch_request& r : c.requests) {
      if (random.chance(20)) r.age_us = random.next();
      if (random.chance(20)) r.kv_bytes = random.next();
      if (random.chance(20)) r.prompt_tokens_left = random.next();
      if (random.chance(20)) r.priority = static_cast<uint32_t>(random.next());
      if (random.chance(20)) r.context_tokens = static_cast<uint32_t>(random.next());
      if (random.chance(20)) r.deadline_us = random.below(2);
    }
    if (random.chance(30)) c.req.step_tokens_max = random.chance(50) ? 0 : random.next();
    if (random.chance(30)) c.req.kv_bytes_free = random.chance(50) ? 0 : random.next();
    if (random.chance(30)) c.req.sequences_max = random.below32(3);
    std::vector<mri_batch_pick> picks;
    uint64_t n = 0;
    if (policy.next(c, c.requests.size(), &picks, &n) == MRI_OK) check_limits(bench, c, picks);
  }
}

constexpr Test kTests[] = {
    {"batching.space", "batching", 2, MRI_1_0,
     "Without room for the picks: MRI_E_SPACE, nothing written.",
     "mri::Writer counts on past the end.", says_how_much_room},
    {"batching.legal", "batching", 3, MRI_1_0,
     "Each pick is of another request of the list, 1 token to decode or at most what is left of "
     "the prompt; the sums keep step_tokens_max and sequences_max.",
     "The lane clips what is over a limit, so somebody gets less than the policy meant.",
     keeps_the_limits},
    {"batching.progress", "batching", 3, MRI_1_0,
     "Something is picked whenever a request is there, also when memory is short.",
     "A policy that waits for memory waits for ever: let one request try.", makes_progress},
    {"batching.pure", "batching", 3, MRI_1_0,
     "The same request has the same answer, in every object.",
     "Use the request alone; age_us is the clock.", answers_the_same_again},
    {"batching.no-starvation", "batching", 3, MRI_1_0,
     "A request of the lowest priority has its turn within 10 minutes however many others arrive.",
     "Raise the rank with age_us.", lets_nobody_starve},
    {"batching.threads", "batching", 4, MRI_1_0, "Four threads at once get the same answers.",
     "next_step is [any]: no shared scratch memory.", serves_threads},
    {"batching.fuzz", "batching", 4, MRI_1_0,
     "Any numbers in the request: the limits hold, never a crash or a write outside.",
     "Sums and products of 64-bit numbers overflow; step_tokens_max and sequences_max may be 0.",
     survives_any_request},
};

}  // namespace

std::span<const Test> batching_tests() { return kTests; }

}  // namespace mri::conformance
