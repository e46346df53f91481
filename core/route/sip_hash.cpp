// SipHash-2-4 after J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.
#include <bit>

#include "core/route/experiment.h"

namespace varve {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }

  void take(uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

// Little-endian, at most eight bytes.
uint64_t word_of(std::string_view bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    word |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return word;
}

}  // namespace

uint64_t sip_hash(uint64_t key0, uint64_t key1, std::string_view data) {
  State state{key0 ^ 0x736f6d6570736575, key1 ^ 0x646f72616e646f6d, key0 ^ 0x6c7967656e657261,
              key1 ^ 0x7465646279746573};
  const size_t whole = data.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) state.take(word_of(data.substr(i, 8)));
  state.take(word_of(data.substr(whole)) | uint64_t{data.size()} << 56);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace varve
