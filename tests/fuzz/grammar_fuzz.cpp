// Any bytes as a grammar and as a JSON schema: refused, or followed as far as it goes, in bounded
// time and memory. What a schema becomes must be a grammar that can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "adapters/sampling/grammar.h"
#include "core/engine/json_grammar.h"

namespace {

using varve::sampling::GrammarAutomaton;
using varve::sampling::GrammarError;

// Takes the first byte that may follow, again and again, and tries what a vocabulary would.
void walk(GrammarAutomaton& automaton) {
  for (int i = 0; i < 32; ++i) {
    automaton.start_token();
    bool moved = false;
    for (int byte = 255; byte >= 0; --byte) {
      const char c = static_cast<char>(byte);
      GrammarAutomaton::Place place = automaton.place();
      if (!automaton.follow({&c, 1}, place)) continue;
      if (!moved) automaton.move_to(place);
      moved = true;
    }
    if (!moved) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    GrammarAutomaton automaton(varve::sampling::parse_grammar(text));
    walk(automaton);
  } catch (const GrammarError&) {
  }
  const auto schema = nlohmann::ordered_json::parse(text, nullptr, false);
  if (schema.is_discarded()) return 0;
  const absl::StatusOr<std::string> grammar = varve::json_schema_grammar(schema);
  if (!grammar.ok()) return 0;
  try {
    varve::sampling::parse_grammar(*grammar);
  } catch (const GrammarError&) {
    std::abort();
  }
  return 0;
}
