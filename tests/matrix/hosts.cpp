#include "tests/matrix/hosts.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/text.h"
#include "core/plugin/stack.h"
#include "tests/matrix/kept_1_0/calls.h"

namespace varve::matrix {
namespace {

// What the host reads of an answer to an eviction.
std::string evict(const mri::Peer<mri_runtime_v1>& runtime) {
  mri_init_req init{};
  init.hdr.struct_size = sizeof(init);
  init.max_tokens = 64;
  mri_init_rsp made{};
  made.hdr.struct_size = sizeof(made);
  mri_evict_req req{};
  req.hdr.struct_size = sizeof(req);
  mri_evict_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  if (runtime.table->init_context(runtime.self, &init, &made, nullptr) != MRI_OK ||
      runtime.table->evict_kv(runtime.self, made.ctx, &req, &rsp, nullptr) != MRI_OK) {
    return ", eviction failed";
  }
  return rsp.confirm_state == MRI_CONFIRM_DONE      ? ", eviction done"
         : rsp.confirm_state == MRI_CONFIRM_UNKNOWN ? ", eviction unknown"
                                                    : ", eviction undecided";
}

std::string called(const Stack& stack, const std::string& kind) {
  const PluginReport report = stack.report()[0];
  const auto peer = stack.peer<void>(interface_of(kind.c_str()));
  uint64_t n_answers = 0;
  const char* wrong = call_kind(kind.c_str(), peer.table, peer.self, &n_answers);
  if (wrong != nullptr) return absl::StrCat("broken: ", wrong);
  std::string text =
      absl::StrCat("ok ", version_text(report.info.negotiated), ", ", n_answers, " answers");
  if (kind == "runtime") {
    absl::StrAppend(&text, stack.timings() ? "" : ", no mri.timings/1", evict(stack.runtime()));
  }
  if (stack.report()[0].misbehaved > 0) absl::StrAppend(&text, ", misbehaved");
  return text;
}

}  // namespace

Ran run(const std::string& command) {
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

std::string on_program(const std::string& program, const std::string& plugin,
                       const std::vector<std::string>& without) {
  std::string command = absl::StrCat("'", program, "'");
  for (const std::string& id : without) absl::StrAppend(&command, " --without ", id);
  const Ran ran = run(absl::StrCat(command, " '", plugin, "'"));
  const std::string line(absl::StripTrailingAsciiWhitespace(ran.text));
  const int wanted = absl::StartsWith(line, "ok ") ? 0 : absl::StartsWith(line, "MRI-") ? 1 : 2;
  return ran.code == wanted ? line : absl::StrCat("exit code ", ran.code, ": ", line);
}

std::string on_core(const std::string& plugin, const std::string& kind, VersionRange host,
                    const std::vector<std::string>& without) {
  static auto* threads = new ThreadPool(2);
  StackSpec spec;
  spec.plugins = {{kind, plugin, {}}};
  spec.host_versions = host;
  spec.services.threads = threads;
  spec.services.withheld = without;
  const auto stack = load_stack(spec);
  return stack.ok() ? called(**stack, kind) : std::string(stack.status().message());
}

}  // namespace varve::matrix
