#include "adapters/sampling/grammar.h"

#include <algorithm>

#include "adapters/sampling/utf8.h"

namespace varve::sampling {
namespace {

constexpr size_t kHeadsMax = 4096;             // stacks that one state may stand for
constexpr size_t kNodesMax = 500'000;          // 24 bytes each: depth of an answer and width
constexpr size_t kStatesMax = 4096;            // 600 bytes each; older ones are made again
constexpr size_t kBeyondAsciiMax = 100'000;    // 50 bytes each; forgotten and made again
constexpr uint64_t kCheckWorkMax = 2'000'000;  // about 50 ms
constexpr uint64_t kTokenWorkMax = 1'000'000;  // for all tokens of the vocabulary: about 25 ms
constexpr uint64_t kStateWork = 100;
constexpr int32_t kUnknown = -2, kDead = -1;

}  // namespace

GrammarAutomaton::GrammarAutomaton(Grammar grammar) : grammar_(std::move(grammar)) {
  nodes_.push_back({});  // 0: nothing is left
  seen_.push_back(0);
  work_left_ = kCheckWorkMax;
  check_rules();
  nodes_.resize(1);
  seen_.resize(1);
  node_of_.clear();
  place_.state = state_of(closure(start_nodes(grammar_.root)));
  if (place_.state == kDead) throw GrammarError("grammar: no text can match the rule root");
}

// A rule that recurses on the left opens without end.
void GrammarAutomaton::check_rules() {
  for (uint32_t rule = 0; rule < grammar_.rules.size(); ++rule) closure(start_nodes(rule));
}

void GrammarAutomaton::work(uint64_t units) {
  if (work_left_ < units) {
    throw GrammarError(
        "grammar: too ambiguous or too large to follow; a rule may recurse on the left (begin "
        "with itself): make alternatives begin differently");
  }
  work_left_ -= units;
}

void GrammarAutomaton::start_token() {
  work_left_ = kTokenWorkMax;
  if (states_.size() > kStatesMax) forget_states();
  if (beyond_ascii_.size() > kBeyondAsciiMax) beyond_ascii_.clear();
}

void GrammarAutomaton::forget_states() {
  std::vector<uint32_t> heads = std::move(states_[static_cast<size_t>(place_.state)].heads);
  states_.clear();
  number_of_.clear();
  beyond_ascii_.clear();
  place_.state = state_of(std::move(heads));
}

uint32_t GrammarAutomaton::push(uint32_t position, uint32_t parent) {
  if (grammar_.elements[position].kind == Element::kEnd) return parent;
  const auto [at, is_new] =
      node_of_.emplace(uint64_t{position} << 32 | parent, static_cast<uint32_t>(nodes_.size()));
  if (is_new) {
    if (nodes_.size() >= kNodesMax)
      throw GrammarError("grammar: the answer is nested too deep to follow it any further");
    nodes_.push_back({position, parent});
    seen_.push_back(0);
  }
  return at->second;
}

std::vector<uint32_t> GrammarAutomaton::start_nodes(uint32_t rule) {
  std::vector<uint32_t> nodes;
  for (const uint32_t start : grammar_.rules[rule]) nodes.push_back(push(start, 0));
  return nodes;
}

// Opens rules until every stack begins with characters.
std::vector<uint32_t> GrammarAutomaton::closure(std::vector<uint32_t> pending) {
  std::vector<uint32_t> heads;
  const uint32_t mark = ++n_closures_;
  size_t n_met = 0;
  while (!pending.empty()) {
    const uint32_t number = pending.back();
    pending.pop_back();
    if (seen_[number] == mark) continue;
    seen_[number] = mark;
    work(1);
    if (++n_met > 2 * kHeadsMax) work(work_left_ + 1);
    const Node node = nodes_[number];
    const Element element = grammar_.elements[node.position];
    if (number == 0 || element.kind == Element::kChars) {
      heads.push_back(number);
      continue;
    }
    const uint32_t then = push(node.position + 1, node.parent);
    for (const uint32_t start : grammar_.rules[element.index]) pending.push_back(push(start, then));
    work(grammar_.rules[element.index].size());
  }
  std::sort(heads.begin(), heads.end());
  return heads;
}

int32_t GrammarAutomaton::state_of(std::vector<uint32_t> heads) {
  if (heads.empty()) return kDead;
  const auto [at, is_new] =
      number_of_.emplace(std::move(heads), static_cast<int32_t>(states_.size()));
  if (is_new) {
    work(kStateWork);
    State& state = states_.emplace_back();
    state.heads = at->first;
    state.ascii.fill(kUnknown);
  }
  return at->second;
}

int32_t GrammarAutomaton::next(int32_t state, uint32_t code_point) {
  std::vector<uint32_t> pending;
  const std::vector<uint32_t>& heads = states_[static_cast<size_t>(state)].heads;
  for (const uint32_t head : heads) {
    if (head == 0) continue;
    const Node node = nodes_[head];
    const CharClass& chars = grammar_.classes[grammar_.elements[node.position].index];
    work(1 + chars.ranges.size());
    if (chars.has(code_point)) pending.push_back(push(node.position + 1, node.parent));
  }
  return state_of(closure(std::move(pending)));
}

int32_t GrammarAutomaton::step(int32_t state, uint32_t code_point) {
  if (code_point < 128) {
    int32_t known = states_[static_cast<size_t>(state)].ascii[code_point];
    if (known == kUnknown) {
      known = next(state, code_point);
      states_[static_cast<size_t>(state)].ascii[code_point] = known;
    }
    return known;
  }
  const uint64_t key = static_cast<uint64_t>(state) << 32 | code_point;
  const auto known = beyond_ascii_.find(key);
  if (known != beyond_ascii_.end()) return known->second;
  return beyond_ascii_[key] = next(state, code_point);
}

// Could the rest of the sequence make a character that is wanted?
bool GrammarAutomaton::can_become(const Place& place) const {
  const uint32_t shift = 6u * place.n_missing;
  const uint32_t low = std::max(place.code_point << shift, utf8_least(place.n_bytes));
  const uint32_t high = std::min((place.code_point << shift) | ((1u << shift) - 1), kCodePointMax);
  if (low > high || (is_surrogate(low) && is_surrogate(high))) return false;
  const std::vector<uint32_t>& heads = states_[static_cast<size_t>(place.state)].heads;
  return std::any_of(heads.begin(), heads.end(), [&](uint32_t head) {
    return head != 0 &&
           grammar_.classes[grammar_.elements[nodes_[head].position].index].has_any_of(low, high);
  });
}

bool GrammarAutomaton::take(unsigned char byte, Place& place) {
  if (place.n_missing == 0) {
    place.n_bytes = utf8_length(byte);
    if (place.n_bytes == 0) return false;
    place.code_point = utf8_first_bits(byte, place.n_bytes);
    place.n_missing = static_cast<uint8_t>(place.n_bytes - 1);
  } else {
    if ((byte & 0xC0) != 0x80) return false;
    place.code_point = place.code_point << 6 | (byte & 0x3F);
    --place.n_missing;
  }
  if (place.n_missing > 0) return can_become(place);
  if (place.code_point < utf8_least(place.n_bytes) || place.code_point > kCodePointMax ||
      is_surrogate(place.code_point)) {
    return false;
  }
  place.state = step(place.state, place.code_point);
  place.code_point = 0;
  return place.state != kDead;
}

bool GrammarAutomaton::follow(std::string_view bytes, Place& place) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](char c) { return take(static_cast<unsigned char>(c), place); });
}

void GrammarAutomaton::move_to(const Place& place) { place_ = place; }

bool GrammarAutomaton::is_complete() const {
  return place_.n_missing == 0 && states_[static_cast<size_t>(place_.state)].heads.front() == 0;
}

}  // namespace varve::sampling
