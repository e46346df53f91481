// Reads GBNF.
#include <algorithm>
#include <map>

#include "adapters/sampling/grammar.h"
#include "adapters/sampling/utf8.h"

namespace varve::sampling {
namespace {

using Sequence = std::vector<Element>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || is_digit(c);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Grammar parse() {
    skip_blanks(true);
    while (!at_end()) read_rule();
    for (const auto& [name, rule] : names_) {
      if (!defined_[rule]) fail("rule " + std::string(name) + " is used but not defined");
    }
    const auto root = names_.find("root");
    if (root == names_.end()) fail("found no rule named root; expected \"root ::= ...\"");
    return finished(root->second);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    throw GrammarError("grammar, line " + std::to_string(line) + ": " + what);
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool accept(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(found() + std::string("; expected '") + c + "'");
  }
  std::string found() const {
    if (at_end()) return "found the end";
    const char c = text_[at_];
    return c > ' ' && c < 127 ? std::string("found '") + c + "'" : "found an unexpected byte";
  }

  void skip_blanks(bool newlines) {
    while (!at_end()) {
      const char c = text_[at_];
      if (c == '#') {
        while (!at_end() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view read_name() {
    const size_t first = at_;
    while (!at_end() && is_name(text_[at_])) ++at_;
    if (at_ == first) fail(found() + "; expected a rule's name");
    return text_.substr(first, at_ - first);
  }

  uint32_t rule_named(std::string_view name) {
    const auto [at, is_new] = names_.emplace(name, static_cast<uint32_t>(rules_.size()));
    if (is_new) new_rule(false);
    return at->second;
  }
  uint32_t new_rule(bool is_defined) {
    rules_.emplace_back();
    defined_.push_back(is_defined);
    return static_cast<uint32_t>(rules_.size() - 1);
  }

  void read_rule() {
    const std::string_view name = read_name();
    const uint32_t rule = rule_named(name);
    if (defined_[rule]) fail("rule " + std::string(name) + " is defined twice");
    defined_[rule] = true;
    skip_blanks(false);
    for (const char c : {':', ':', '='}) expect(c);
    skip_blanks(true);
    read_alternatives(rule, 0);
    if (!at_end() && peek() != '\n' && peek() != '\r')
      fail(found() + "; expected the end of the line");
    skip_blanks(true);
  }

  void read_alternatives(uint32_t rule, uint32_t nesting) {
    do {
      skip_blanks(true);
      Sequence sequence = read_sequence(nesting);
      rules_[rule].push_back(std::move(sequence));
    } while (accept('|'));
  }

  Sequence read_sequence(uint32_t nesting) {
    Sequence sequence;
    size_t last = 0;  // where the item begins that a repetition repeats
    while (!at_end()) {
      const char c = peek();
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (last == sequence.size()) fail("found a repetition of nothing");
        repeat(sequence, last);
        last = sequence.size();
      } else {
        const size_t before = sequence.size();
        if (!read_item(sequence, nesting)) break;
        last = before;
      }
      skip_blanks(nesting > 0);
    }
    return sequence;
  }

  // False when no item begins here.
  bool read_item(Sequence& sequence, uint32_t nesting) {
    const char c = peek();
    if (accept('"')) {
      while (!accept('"')) add(sequence, single(read_char()));
    } else if (accept('[')) {
      add(sequence, read_class());
    } else if (accept('.')) {
      add(sequence, CharClass{{}, true});
    } else if (accept('(')) {
      if (nesting >= kGrammarNestingMax)
        fail("found brackets nested deeper than " + std::to_string(kGrammarNestingMax));
      const uint32_t rule = new_rule(true);
      read_alternatives(rule, nesting + 1);
      expect(')');
      add(sequence, Element{Element::kRule, rule});
    } else if (is_name(c)) {
      add(sequence, Element{Element::kRule, rule_named(read_name())});
    } else {
      return false;
    }
    return true;
  }

  static CharClass single(uint32_t code_point) { return {{{code_point, code_point}}, false}; }

  void add(Sequence& sequence, Element element) {
    if (++n_elements_ > kGrammarElementsMax)
      fail("the grammar is too large: more than " + std::to_string(kGrammarElementsMax) +
           " elements with repetitions written out");
    sequence.push_back(element);
  }
  void add(Sequence& sequence, const CharClass& chars) {
    const auto [at, is_new] = classes_.emplace(chars, static_cast<uint32_t>(classes_.size()));
    (void)is_new;
    add(sequence, Element{Element::kChars, at->second});
  }

  CharClass read_class() {
    CharClass chars;
    chars.negated = accept('^');
    while (!accept(']')) {
      const uint32_t low = read_char();
      uint32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = read_char();
        if (high < low) fail("found a range of characters whose end lies before its start");
      }
      chars.ranges.emplace_back(low, high);
    }
    return chars;
  }

  uint32_t read_char() {
    if (at_end()) fail("found the end inside a text or a class of characters");
    if (accept('\\')) return read_escape();
    if (peek() == '\n' || peek() == '\r') fail("found a line break inside a text; write \\n");
    uint32_t code_point = 0;
    const size_t n = read_utf8(text_.substr(at_), &code_point);
    if (n == 0) fail("found bytes that are not UTF-8");
    at_ += n;
    return code_point;
  }

  uint32_t read_escape() {
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return read_hex(2);
      case 'u':
        return read_hex(4);
      case 'U':
        return read_hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      default:
        --at_;
        fail(found() + " after a backslash; expected n, r, t, x, u, U or a quoted sign");
    }
  }

  uint32_t read_hex(int n_digits) {
    uint32_t value = 0;
    for (int i = 0; i < n_digits; ++i) {
      const char c = peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail(found() + "; expected " + std::to_string(n_digits) + " hex digits");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    if (value > kCodePointMax) fail("found a code point above 10FFFF");
    return value;
  }

  uint32_t read_count() {
    if (!is_digit(peek())) fail(found() + "; expected a number");
    uint32_t value = 0;
    while (is_digit(peek())) {
      value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (value > kGrammarRepetitionsMax)
        fail("found more than " + std::to_string(kGrammarRepetitionsMax) +
             " repetitions; leave out the upper limit or lower it");
    }
    skip_blanks(true);
    return value;
  }

  // Reads *, +, ?, {m}, {m,} or {m,n} and rewrites sequence[first ...].
  void repeat(Sequence& sequence, size_t first) {
    uint32_t least = 0, most = 0;
    bool is_endless = false;
    const char c = text_[at_++];
    if (c == '{') {
      skip_blanks(true);
      least = most = read_count();
      if (accept(',')) {
        skip_blanks(true);
        is_endless = peek() == '}';
        if (!is_endless) most = read_count();
      }
      expect('}');
      if (most < least) fail("found {m,n} with n below m");
    } else {
      least = c == '+' ? 1 : 0;
      most = 1;
      is_endless = c != '?';
    }
    Element item = sequence[first];
    if (sequence.size() - first > 1) {
      item = {Element::kRule, new_rule(true)};
      rules_[item.index] = {
          Sequence(sequence.begin() + static_cast<ptrdiff_t>(first), sequence.end())};
    }
    sequence.resize(first);
    for (uint32_t i = 0; i < least; ++i) add(sequence, item);
    if (is_endless) {
      const uint32_t rule = new_rule(true);
      rules_[rule] = {{item, {Element::kRule, rule}}, {}};
      add(sequence, Element{Element::kRule, rule});
    } else if (most > least) {
      add(sequence, Element{Element::kRule, optional(item, most - least)});
    }
  }

  // A rule for 0 to n items: the first, then 0 to n - 1.
  uint32_t optional(Element item, uint32_t n) {
    uint32_t rest = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t rule = new_rule(true);
      Sequence some;
      add(some, item);
      if (i > 0) add(some, {Element::kRule, rest});
      rules_[rule] = {std::move(some), {}};
      rest = rule;
    }
    return rest;
  }

  Grammar finished(uint32_t root) const {
    Grammar grammar;
    grammar.root = root;
    for (const auto& alternatives : rules_) {
      std::vector<uint32_t>& starts = grammar.rules.emplace_back();
      for (const Sequence& sequence : alternatives) {
        starts.push_back(static_cast<uint32_t>(grammar.elements.size()));
        grammar.elements.insert(grammar.elements.end(), sequence.begin(), sequence.end());
        grammar.elements.push_back({});
      }
    }
    grammar.classes.resize(classes_.size());
    for (const auto& [chars, index] : classes_) grammar.classes[index] = chars;
    return grammar;
  }

  const std::string_view text_;
  size_t at_ = 0;
  uint32_t n_elements_ = 0;
  std::map<std::string_view, uint32_t> names_;
  std::vector<std::vector<Sequence>> rules_;
  std::vector<bool> defined_;
  std::map<CharClass, uint32_t> classes_;
};

}  // namespace

bool CharClass::has(uint32_t code_point) const {
  const bool listed = std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.first <= code_point && code_point <= range.second;
  });
  return listed != negated;
}

bool CharClass::has_any_of(uint32_t low, uint32_t high) const {
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
           return negated ? range.first <= low && high <= range.second
                          : range.first <= high && low <= range.second;
         }) != negated;
}

Grammar parse_grammar(std::string_view text) {
  if (text.size() > kGrammarBytesMax) {
    throw GrammarError("grammar: found " + std::to_string(text.size()) +
                       " bytes; expected at most " + std::to_string(kGrammarBytesMax));
  }
  return Parser(text).parse();
}

}  // namespace varve::sampling
