// A runtime behind a server's /mri routes (core/http/README.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "mri/conformance/runtime_client.h"
#include "tools/varve/http_client.h"

namespace varve::conform {

class RemoteRuntime : public mri::conformance::RuntimeClient {
 public:
  // Asks as a client of `version`. A server that does not answer shows as MRI_E_DEVICE at each
  // call.
  RemoteRuntime(std::string url, std::string key, uint32_t version);

  mri::conformance::Inited init(const mri::conformance::Init& init) override;
  mri::conformance::SteppedAll step(const std::vector<mri::conformance::Step>& steps) override;
  mri::conformance::Listed list(uint64_t ctx, uint64_t first_token, uint64_t n_tokens) override;
  mri::conformance::Evicted evict(uint64_t ctx, const std::vector<mri_token_range>& ranges,
                                  uint32_t granularity) override;
  void release(uint64_t ctx) override;
  uint64_t vocabulary() override { return vocabulary_; }
  mri::conformance::VersionAnswer ask_with_versions(
      const std::vector<std::string>& values) override;

 private:
  cli::HttpRequest request(const std::string& method, const std::string& path) const;
  // Posts `body`; the status that its answer stands for, with the error's text.
  mri_status post(const std::string& path, const nlohmann::json& body, nlohmann::json* answer,
                  std::string* text) const;

  const std::string url_, key_, version_;
  uint64_t vocabulary_ = 0;
};

}  // namespace varve::conform
