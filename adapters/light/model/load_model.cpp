#include "adapters/light/model/load_model.h"

#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "adapters/light/model/decode_rows.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"
#include "kernels/unpack.h"

namespace varve::light {
namespace {

using kernels::PackedWeights;
using kernels::WeightFormat;

// One stored matrix on its way into packed rows. permute_head > 0: rows come in heads of that many,
// whose first `rotary` rows are stored as neighbouring pairs.
struct Piece {
  const StoredTensor* tensor;
  std::string name;
  uint32_t permute_head = 0;
};

// What fills one PackedWeights: the unit of work of a loading thread.
struct Job {
  std::vector<Piece> pieces;
  PackedShape shape;
  PackedWeights* target = nullptr;
  uint64_t bytes = 0;
};

class Loader {
 public:
  Loader(ModelSource source, const LoadOptions& options)
      : source_(std::move(source)), options_(options) {}

  Model load();

 private:
  Piece piece(const std::string& name, bool permute = false) const;
  PackedShape shape_of(const Piece& piece) const;
  void add_matrix(const std::string& name, PackedWeights& target);
  void add_rows(const std::vector<Piece>& pieces, RowParts& target);
  void add_layer(uint32_t index, Model::Layer& layer);
  std::vector<float> vector(const std::string& name, bool permute = false) const;
  uint64_t stored_row(const Piece& piece, uint64_t row) const;
  void read(const StoredTensor& tensor, const std::string& name, uint64_t row,
            std::span<std::byte> out) const;
  void run(Job& job) const;
  void pack(const Job& job, const Piece& piece, uint64_t first_row) const;
  void run_all();
  bool report(uint64_t bytes);

  ModelSource source_;
  const LoadOptions& options_;
  std::vector<Job> jobs_;
  std::atomic<size_t> next_job_ = 0;
  std::mutex mutex_;  // guards the three below
  uint64_t done_ = 0, total_ = 0;
  std::exception_ptr failure_;
};

Piece Loader::piece(const std::string& name, bool permute) const {
  const bool neighbours = permute && source_.config.rope_pairs_neighbour;
  return {&source_.tensors.find(name)->second, name, neighbours ? source_.config.head_dim : 0};
}

void Loader::read(const StoredTensor& tensor, const std::string& name, uint64_t row,
                  std::span<std::byte> out) const {
  const File& file = source_.files[tensor.file];
  if (!file.read_at(tensor.offset + row * (tensor.bytes / tensor.rows), out)) {
    refuse(file.path(), ": tensor '", name,
           "' cannot be read (was the file changed or truncated while loading?)");
  }
  if (!ggml_validate_row_data(static_cast<ggml_type>(tensor.type), out.data(), out.size())) {
    refuse(file.path(), ": tensor '", name, "' holds numbers that are not finite, near row ", row);
  }
}

constexpr uint64_t kChunkBytes = 1 << 20;

uint64_t chunk_rows(const StoredTensor& tensor, uint32_t multiple) {
  const uint64_t rows = std::max<uint64_t>(1, kChunkBytes / (tensor.bytes / tensor.rows));
  return multiple == 0 ? rows : (rows + multiple - 1) / multiple * multiple;
}

PackedShape Loader::shape_of(const Piece& piece) const {
  const StoredTensor& tensor = *piece.tensor;
  if (!is_float_type(tensor.type)) return coded_shape(tensor.type);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  const uint64_t step = chunk_rows(tensor, 0);
  for (uint64_t row = 0; row < tensor.rows && tensor.type != GGML_TYPE_BF16; row += step) {
    const uint64_t rows = std::min(step, tensor.rows - row);
    bytes.resize(rows * (tensor.bytes / tensor.rows));
    values.resize(rows * tensor.cols);
    read(tensor, piece.name, row, bytes);
    expand(tensor.type, bytes.data(), values.data(), values.size());
    if (!fits_bf16(values)) return {WeightFormat::kF32};
  }
  return {WeightFormat::kBf16};
}

void Loader::add_rows(const std::vector<Piece>& pieces, RowParts& target) {
  std::vector<Job> jobs;
  for (const Piece& p : pieces) {
    const PackedShape shape = shape_of(p);
    if (jobs.empty() || jobs.back().shape != shape) jobs.push_back({{}, shape});
    jobs.back().pieces.push_back(p);
    jobs.back().bytes += p.tensor->bytes;
  }
  target.resize(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].target = &target[i];
    jobs_.push_back(std::move(jobs[i]));
  }
}

void Loader::add_matrix(const std::string& name, PackedWeights& target) {
  const Piece p = piece(name);
  jobs_.push_back({{p}, shape_of(p), &target, p.tensor->bytes});
}

// Row `row` of the half-split order, as the file numbers it: inside a head, rotary pair i is stored
// in rows 2 i and 2 i + 1 and wanted in rows i and i + rotary / 2.
uint64_t Loader::stored_row(const Piece& piece, uint64_t row) const {
  if (piece.permute_head == 0) return row;
  const uint64_t in_head = row % piece.permute_head, half = source_.config.rotary_dim / 2;
  if (in_head >= 2 * half) return row;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

void Loader::pack(const Job& job, const Piece& piece, uint64_t first_row) const {
  const StoredTensor& tensor = *piece.tensor;
  const uint64_t row_bytes = tensor.bytes / tensor.rows;
  const uint64_t step = chunk_rows(tensor, piece.permute_head);
  std::vector<std::byte> stored;
  DecodedRows decoded;
  for (uint64_t row = 0; row < tensor.rows; row += step) {
    const uint64_t rows = std::min(step, tensor.rows - row);
    stored.resize(rows * row_bytes);
    read(tensor, piece.name, row, stored);
    resize(decoded, job.shape, rows, tensor.cols);
    for (uint64_t i = 0; i < rows; ++i) {
      const uint64_t from = stored_row(piece, row + i) - row;
      decode_row(tensor.type, job.shape, stored.data() + from * row_bytes, tensor.cols, i, decoded);
    }
    const uint64_t to = first_row + row;
    const float* min = job.shape.has_min ? decoded.min.data() : nullptr;
    switch (job.shape.format) {
      case WeightFormat::kW4:
        job.target->pack_w4(to, rows, decoded.codes4.data(), decoded.scale.data(), min);
        break;
      case WeightFormat::kW8:
        job.target->pack_w8(to, rows, decoded.codes8.data(), decoded.scale.data(), min);
        break;
      case WeightFormat::kBf16:
        job.target->pack_bf16(to, rows, decoded.values.data());
        break;
      case WeightFormat::kF32:
        job.target->pack_f32(to, rows, decoded.values.data());
        break;
    }
  }
}

void Loader::run(Job& job) const {
  uint64_t rows = 0;
  for (const Piece& p : job.pieces) rows += p.tensor->rows;
  *job.target = PackedWeights(job.shape.format, rows, job.pieces[0].tensor->cols, job.shape.group,
                              job.shape.has_min);
  uint64_t first_row = 0;
  for (const Piece& p : job.pieces) {
    pack(job, p, first_row);
    first_row += p.tensor->rows;
  }
}

bool Loader::report(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  return !options_.progress || options_.progress(done_, total_);
}

void Loader::run_all() {
  // Longest first, so that the output matrix does not start last on one thread.
  std::stable_sort(jobs_.begin(), jobs_.end(),
                   [](const Job& a, const Job& b) { return a.bytes > b.bytes; });
  for (const Job& job : jobs_) total_ += job.bytes;
  const auto work = [this] {
    try {
      for (size_t i = next_job_++; i < jobs_.size(); i = next_job_++) {
        run(jobs_[i]);
        if (!report(jobs_[i].bytes)) refuse(source_.path, ": loading was cancelled");
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_job_ = jobs_.size();
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::min<size_t>(options_.threads, jobs_.size()); ++i)
    threads.emplace_back(work);
  work();
  threads.clear();
  if (failure_) std::rethrow_exception(failure_);
}

std::vector<float> Loader::vector(const std::string& name, bool permute) const {
  const Piece p = piece(name, permute);
  std::vector<std::byte> stored(p.tensor->bytes);
  read(*p.tensor, name, 0, stored);
  std::vector<float> values(p.tensor->cols), ordered(values.size());
  expand(p.tensor->type, stored.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) ordered[i] = values[stored_row(p, i)];
  return ordered;
}

void Loader::add_layer(uint32_t index, Model::Layer& layer) {
  const std::string blk = "blk." + std::to_string(index) + ".";
  add_rows({piece(blk + "attn_q.weight", true), piece(blk + "attn_k.weight", true),
            piece(blk + "attn_v.weight")},
           layer.wqkv);
  add_matrix(blk + "attn_output.weight", layer.wo);
  add_rows({piece(blk + "ffn_gate.weight"), piece(blk + "ffn_up.weight")}, layer.w_gate_up);
  add_matrix(blk + "ffn_down.weight", layer.w_down);
  layer.attn_norm = vector(blk + "attn_norm.weight");
  layer.ffn_norm = vector(blk + "ffn_norm.weight");
  if (source_.config.qkv_bias) {
    layer.bias_qkv = vector(blk + "attn_q.bias", true);
    for (const auto& rest : {vector(blk + "attn_k.bias", true), vector(blk + "attn_v.bias")}) {
      layer.bias_qkv.insert(layer.bias_qkv.end(), rest.begin(), rest.end());
    }
  }
  if (source_.config.qk_norm) {
    // A norm weight belongs to a row of the head, so it moves with it; one head long, so it
    // permutes alike.
    layer.q_norm = vector(blk + "attn_q_norm.weight", true);
    layer.k_norm = vector(blk + "attn_k_norm.weight", true);
  }
}

Model Loader::load() {
  Model model;
  model.config = source_.config;
  model.layers.resize(source_.config.n_layers);
  for (uint32_t i = 0; i < source_.config.n_layers; ++i) add_layer(i, model.layers[i]);
  model.output_norm = vector("output_norm.weight");
  add_matrix(source_.config.tied_embeddings ? "token_embd.weight" : "output.weight", model.output);
  if (!source_.config.tied_embeddings) add_matrix("token_embd.weight", model.embedding);
  run_all();
  return model;
}

}  // namespace

void Model::embedding_row(uint32_t token, float* out) const {
  const PackedWeights& table = config.tied_embeddings ? output : embedding;
  kernels::cpu::unpack_rows_f32(table, token, token + 1, out, table.k());
}

uint64_t Model::weight_bytes() const {
  uint64_t bytes = output.bytes() + embedding.bytes();
  for (const Layer& layer : layers) {
    for (const auto& part : layer.wqkv) bytes += part.bytes();
    for (const auto& part : layer.w_gate_up) bytes += part.bytes();
    bytes += layer.wo.bytes() + layer.w_down.bytes();
  }
  return bytes;
}

Model load_model(const std::string& path, const LoadOptions& options) {
  return Loader(open_model(path), options).load();
}

}  // namespace varve::light
