#include "mri/conformance/suite.h"

#include <cxxabi.h>

#include <exception>

namespace mri::conformance {

std::span<const Test> all_tests() {
  static const std::vector<Test> kAll = [] {
    std::vector<Test> all;
    for (const auto& part : {load_tests(), size_tests(), quantizer_tests(), kv_tier_tests(),
                             attention_tests(), summary_tests(), batching_tests(), runtime_tests(),
                             runtime_option_tests(), url_tests(), speed_tests()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return kAll;
}

void run_test(const Test& test, Bench& bench) {
  try {
    test.run(bench);
  } catch (const Stop&) {
  } catch (abi::__forced_unwind&) {
    bench.report->fail("the plugin cancelled the thread that called it");
    throw;
  } catch (const std::exception& e) {
    bench.report->fail(std::string("an exception left the plugin: ") + e.what());
  } catch (...) {
    bench.report->fail("an exception of unknown type left the plugin");
  }
}

bool must_pass(const Test& test, uint32_t version) {
  return test.level < 5 && test.since <= version;
}

}  // namespace mri::conformance
