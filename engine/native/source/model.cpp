#include "model.h"

#include <cstdlib>
#include <cstring>

namespace muster {
namespace {

float* floats(Scratch* scratch, size_t count) { return static_cast<float*>(reserve(scratch, count * sizeof(float))); }

size_t padded(int rows) { return static_cast<size_t>(rows + kRowPad - 1) / kRowPad * kRowPad; }

}  // namespace

int Linear::outputs() const {
  int total = 0;
  for (const auto& part : parts) total += part.rows;
  return total;
}

Model::Model(const Shape& shape, const Kernels* kernels, int num_threads, int num_spare)
    : layers(shape.num_layers),
      shape_(shape),
      kernels_(kernels),
      threads_(num_threads + num_spare, num_spare),
      scratches_(threads_.count()) {
  if (shape_.window <= 0) shape_.window = INT32_MAX / 2;
}

Model::~Model() {
  for (auto& scratch : scratches_) std::free(scratch.data);
  for (auto& scratch : activation_memory_) std::free(scratch.data);
  for (auto* scratch : {&stream_, &projected_, &attended_, &gated_, &angles_, &transposed_, &hidden_})
    std::free(scratch->data);
}

void Model::forward(const int64_t* token_ids, const int64_t* positions, float* out) {
  if (!linked_) link_matrices();
  threads_.begin_step();
  const int hidden = shape_.hidden_size;
  float* x = floats(&stream_, static_cast<size_t>(num_tokens_) * hidden);
  find_angles(positions);
  for (int t = 0; t < num_tokens_; ++t) {
    kernels_->read_row(embedding.parts[0], static_cast<int>(token_ids[t]), x + static_cast<size_t>(t) * hidden);
  }
  for (int index = 0; index < shape_.num_layers; ++index) run_layer(index, x);
  std::memcpy(out, x, static_cast<size_t>(num_tokens_) * hidden * sizeof(float));
  threads_.end_step();
}

void Model::run_layer(int index, float* x) {
  const Layer& layer = layers[index];
  const int tokens = num_tokens_, hidden = shape_.hidden_size;
  const int heads_width = shape_.num_heads * shape_.head_dim;
  const int qkv_width = layer.qkv.outputs();
  const int grain = row_grain(tokens);
  const auto normalise_rows = [&](const float* weight, const Activations& to) {
    threads_.each(tokens, grain, [&](int begin, int end, int thread) {
      float* row = floats(&scratches_[thread], hidden);
      for (int t = begin; t < end; ++t) {
        kernels_->normalise(x + static_cast<size_t>(t) * hidden, weight, hidden, shape_.norm_eps, row);
        kernels_->prepare(row, t, to);
      }
    });
  };

  const Activations& input = prepare_for(kInput, layer.qkv, tokens, has_prompt() ? Use::kPromptKeys : Use::kDecoding);
  normalise_rows(layer.attention_norm, input);
  float* qkv = floats(&projected_, static_cast<size_t>(tokens) * qkv_width);
  multiply(layer.qkv, input, qkv, qkv_width, false);
  const Cache cache = cache_of(index);
  threads_.each(tokens, grain, [&](int begin, int end, int) { finish_heads(layer, cache, begin, end); });

  float* attended = floats(&attended_, static_cast<size_t>(tokens) * heads_width);
  attend_heads(cache, qkv, qkv_width, attended);
  const Activations& heads = prepare_for(kAttended, layer.output, tokens, use());
  threads_.each(tokens, grain, [&](int begin, int end, int) {
    for (int t = begin; t < end; ++t) kernels_->prepare(attended + static_cast<size_t>(t) * heads_width, t, heads);
  });
  multiply(layer.output, heads, x, hidden, true);

  const Activations& mlp_input = prepare_for(kInput, layer.gate_up, tokens, use());
  normalise_rows(layer.mlp_norm, mlp_input);
  const Activations& inner = prepare_for(kGated, layer.down, tokens, use());
  if (gates_fit(layer, tokens))
    run_gates_at_once(layer, mlp_input, inner);
  else
    run_gates(layer, mlp_input, inner, grain);
  multiply(layer.down, inner, x, hidden, true);
}

void Model::run_gates(const Layer& layer, const Activations& input, const Activations& inner, int grain) {
  const int tokens = inner.rows, intermediate = shape_.intermediate_size;
  float* gated = floats(&gated_, static_cast<size_t>(tokens) * 2 * intermediate);
  multiply(layer.gate_up, input, gated, 2 * intermediate, false);
  threads_.each(tokens, grain, [&](int begin, int end, int) {
    for (int t = begin; t < end; ++t) {
      float* row = gated + static_cast<size_t>(t) * 2 * intermediate;
      kernels_->gate(row, row + intermediate, intermediate, row);
      kernels_->prepare(row, t, inner);
    }
  });
}

bool Model::gates_fit(const Layer& layer, int tokens) const {
  if (kernels_->multiply_gated == nullptr || layer.gate_up.parts.size() != 2) return false;
  if (shape_.intermediate_size % 32 != 0) return false;
  for (const auto& part : layer.gate_up.parts)
    if (part.bias != nullptr || kernels_->format(part.codes, tokens, use()) != Format::kBfloat16) return false;
  return kernels_->format(layer.down.parts[0].codes, tokens, use()) == Format::kBfloat16;
}

void Model::run_gates_at_once(const Layer& layer, const Activations& input, const Activations& inner) {
  const Matrix &gate = layer.gate_up.parts[0], &up = layer.gate_up.parts[1];
  threads_.each(gate.num_panels, panel_grain(gate), [&](int begin, int end, int thread) {
    kernels_->multiply_gated(gate, up, input, inner, begin, end, &scratches_[thread]);
  });
}

void Model::logits(const float* hidden, int rows, float* out) {
  const int size = shape_.hidden_size;
  const Activations& input = prepare_for(kInput, head, rows, use());
  threads_.each(rows, row_grain(rows), [&](int begin, int end, int thread) {
    float* row = floats(&scratches_[thread], size);
    for (int r = begin; r < end; ++r) {
      kernels_->normalise(hidden + static_cast<size_t>(r) * size, final_norm, size, shape_.norm_eps, row);
      kernels_->prepare(row, r, input);
    }
  });
  multiply(head, input, out, shape_.vocab_size, false);
}

void Model::apply(const Linear& linear, const float* x, int rows, float* out) {
  const int inputs = linear.parts[0].cols;
  const Activations& input = prepare_for(kInput, linear, rows, Use::kPromptKeys);
  for (int r = 0; r < rows; ++r) kernels_->prepare(x + static_cast<size_t>(r) * inputs, r, input);
  multiply(linear, input, out, linear.outputs(), false);
}

Activations& Model::prepare_for(Stage stage, const Linear& linear, int rows, Use use) {
  Activations& x = activations_[stage];
  x.rows = rows;
  x.cols = linear.parts[0].cols;
  x.num_blocks = linear.parts[0].num_blocks;
  x.formats = 0;
  for (const auto& part : linear.parts) x.formats |= static_cast<int>(kernels_->format(part.codes, rows, use));
  const size_t blocks = padded(rows) * x.num_blocks, numbers = blocks * kBlock;
  // The rows that fill up a tile are computed with; what they hold does not matter.
  auto* memory = static_cast<uint8_t*>(reserve(&activation_memory_[stage], numbers * 7 + blocks * 12));
  x.values = reinterpret_cast<float*>(memory);
  x.halves = reinterpret_cast<uint16_t*>(memory + numbers * 4);
  x.words = reinterpret_cast<int16_t*>(x.halves);  // no set of kernels has both
  x.codes = reinterpret_cast<int8_t*>(memory + numbers * 6);
  x.scales = reinterpret_cast<float*>(memory + numbers * 7);
  x.sums = x.scales + blocks;
  x.code_sums = reinterpret_cast<int32_t*>(x.sums + blocks);
  return x;
}

void Model::multiply(const Linear& linear, const Activations& x, float* out, int stride, bool accumulate) {
  for (const auto& part : linear.parts) {
    threads_.each(part.num_panels, panel_grain(part), [&](int begin, int end, int thread) {
      kernels_->multiply(part, x, out, stride, accumulate, begin, end, &scratches_[thread]);
    });
    out += part.rows;
  }
}

int Model::panel_grain(const Matrix& matrix) const {
  // A few pieces per thread even out a core that others use; pairs of panels are what the tile kernel takes.
  const int pieces = threads_.active() > 1 ? threads_.active() * 4 : 1;
  return ((matrix.num_panels + pieces - 1) / pieces + 1) / 2 * 2;
}

// Tells each matrix what follows it in a step, so that it is on its way when its turn comes.
void Model::link_matrices() {
  constexpr size_t kMost = 256 << 10;
  Matrix* before = nullptr;
  const auto link = [&](Linear& linear) {
    for (auto& part : linear.parts) {
      const size_t size = part.num_panels * part.panel_bytes;
      if (before != nullptr) {
        before->after = part.data;
        before->after_bytes = size < kMost ? size : kMost;
      }
      before = &part;
    }
  };
  for (auto& layer : layers)
    for (auto* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) link(*linear);
  linked_ = true;
}

int Model::row_grain(int rows) const {
  // Below some rows per thread, handing work over costs more than doing it.
  const int pieces = threads_.active() * 2;
  const int grain = (rows + pieces - 1) / pieces;
  return threads_.active() == 1 ? (rows > 0 ? rows : 1) : (grain < 4 ? 4 : grain);
}

}  // namespace muster
