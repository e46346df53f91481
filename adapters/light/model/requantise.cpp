#include "adapters/light/model/requantise.h"

#include <llama.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "adapters/light/model/libllama.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"

namespace varve::light {
namespace {

namespace fs = std::filesystem;

// Identifies the bytes of `in` as far as the file system can tell.
std::string stamp_of(const std::string& in) {
  std::ostringstream text;
  text << fs::canonical(in).string() << '\n'
       << fs::file_size(in) << '\n'
       << fs::last_write_time(in).time_since_epoch().count() << '\n';
  return text.str();
}

std::string read_stamp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A name that is not there after this object's life.
struct Scratch {
  explicit Scratch(const std::string& out) : path(out + ".part" + std::to_string(::getpid())) {}
  ~Scratch() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path;
};

void quantise(const std::string& in, const std::string& out) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  params.nthread = 0;
  take_library_error();
  if (llama_model_quantize(in.c_str(), out.c_str(), &params) != 0) {
    refuse(in, ": libllama cannot write its f32 copy to ", out, ": ", take_library_error());
  }
}

}  // namespace

void write_f32_copy(const std::string& in, const std::string& out) {
  open_gguf(in);
  prepare_libllama();
  try {
    const std::string stamp = stamp_of(in), stamp_path = out + ".source";
    if (fs::exists(out) && read_stamp(stamp_path) == stamp) return;
    const Scratch scratch(out);
    quantise(in, scratch.path);
    fs::remove(stamp_path);
    fs::rename(scratch.path, out);
    std::ofstream file(stamp_path, std::ios::binary);
    if (!(file << stamp << std::flush)) refuse(stamp_path, ": cannot be written");
  } catch (const fs::filesystem_error& e) {
    refuse("the f32 copy of ", in, ": ", e.what());
  }
}

}  // namespace varve::light
