#include "adapters/light/model/shared_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

namespace varve::light {
namespace {

std::string identity_of(const std::string& file) {
  struct stat s {};
  if (stat(file.c_str(), &s) != 0) return file;  // load_model() says what is wrong with it
  return file + '\n' + std::to_string(s.st_dev) + ' ' + std::to_string(s.st_ino) + ' ' +
         std::to_string(s.st_size) + ' ' + std::to_string(s.st_mtim.tv_sec) + ' ' +
         std::to_string(s.st_mtim.tv_nsec) + '\n';
}

std::string key_of(const std::string& path) {
  std::error_code error;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  std::string key = identity_of(path);
  for (const std::string& file : files) key += identity_of(file);
  return key;
}

}  // namespace

std::shared_ptr<const Model> share_model(const std::string& path, const LoadOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Model>> models;
  const std::lock_guard lock(mutex);
  std::erase_if(models, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Model>& known = models[key_of(path)];
  std::shared_ptr<const Model> model = known.lock();
  if (model == nullptr) {
    model = std::make_shared<const Model>(load_model(path, options));
    known = model;
  }
  return model;
}

}  // namespace varve::light
