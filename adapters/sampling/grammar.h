// Grammars that an answer must follow: GBNF text, and where in it an answer stands.
//
// libllama can read the same text, but a hostile one makes it hang (`root ::= a root "x" | "x"`
// with an empty a), or take memory without end (ambiguous recursion doubles its stacks with every
// character). Here sizes and work are bounded, and exceeding a bound is an error of this grammar
// alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace varve::sampling {

inline constexpr size_t kGrammarBytesMax = 64 << 10;
inline constexpr uint32_t kGrammarNestingMax = 64;        // brackets inside brackets
inline constexpr uint32_t kGrammarRepetitionsMax = 2000;  // m and n of {m,n}
inline constexpr uint32_t kGrammarElementsMax = 200'000;  // after repetitions are written out

// Says where, what was found and what was expected.
class GrammarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Code points; `negated`: all but these. Both ends belong to a range.
struct CharClass {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  bool negated = false;

  bool has(uint32_t code_point) const;
  bool has_any_of(uint32_t low, uint32_t high) const;
  auto operator<=>(const CharClass&) const = default;
};

struct Element {
  enum Kind : uint32_t { kEnd, kRule, kChars };  // kEnd closes an alternative
  Kind kind = kEnd;
  uint32_t index = 0;  // of the rule or class
};

// A grammar in plain lists. Immutable.
struct Grammar {
  std::vector<Element> elements;
  std::vector<std::vector<uint32_t>> rules;  // of each rule, where its alternatives begin
  std::vector<CharClass> classes;
  uint32_t root = 0;
};

// `name ::= alternatives`, one rule a line or in brackets over several; "text", [a-z], [^a-z], .,
// (…), *, +, ?, {m}, {m,}, {m,n}, # comments; escapes \n \r \t \" \\ \[ \] \- \xHH \uHHHH
// \UHHHHHHHH. The rule `root` is where an answer begins. Throws GrammarError.
Grammar parse_grammar(std::string_view text);

// A grammar in work: a pushdown automaton whose states (sets of possible stacks) are made when
// first met and kept. One thread at a time.
class GrammarAutomaton {
 public:
  // Throws GrammarError when a rule recurses on the left.
  explicit GrammarAutomaton(Grammar grammar);

  // A place in the answer; may be inside a UTF-8 sequence.
  struct Place {
    int32_t state = 0;
    uint32_t code_point = 0;  // its bits so far
    uint8_t n_missing = 0;    // bytes
    uint8_t n_bytes = 0;
  };
  const Place& place() const { return place_; }

  // Would these bytes be a possible continuation of `place`, and where do they lead? False leaves
  // `place` undefined. Throws GrammarError when that takes too much work or memory.
  bool follow(std::string_view bytes, Place& place);
  // The answer stands at `place` now.
  void move_to(const Place& place);
  // May the answer end here?
  bool is_complete() const;
  // To be called before each token: the work allowed for it.
  void start_token();

 private:
  struct Node {  // what is left to match: elements from `position` on, then the parent's
    uint32_t position = 0, parent = 0;
  };
  struct State {
    std::vector<uint32_t> heads;  // nodes whose element is kChars; sorted. 0: nothing is left
    std::array<int32_t, 128> ascii;
  };

  void check_rules();
  uint32_t push(uint32_t position, uint32_t parent);
  std::vector<uint32_t> closure(std::vector<uint32_t> pending);
  int32_t state_of(std::vector<uint32_t> heads);
  std::vector<uint32_t> start_nodes(uint32_t rule);
  int32_t step(int32_t state, uint32_t code_point);
  int32_t next(int32_t state, uint32_t code_point);
  bool take(unsigned char byte, Place& place);
  bool can_become(const Place& place) const;
  void work(uint64_t units);
  void forget_states();

  const Grammar grammar_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_of_;
  std::vector<uint32_t> seen_;  // [node] closure that met it last
  uint32_t n_closures_ = 0;
  std::vector<State> states_;
  std::map<std::vector<uint32_t>, int32_t> number_of_;
  std::unordered_map<uint64_t, int32_t> beyond_ascii_;
  uint64_t work_left_ = 0;
  Place place_;
};

}  // namespace varve::sampling
