// A step of sequences with one new token each, from token ids to logits and choices, in one call.
#include <chrono>

#include "first_best.h"
#include "model.h"

namespace muster {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Model::decode(Decode* step) {
  const int rows = step->num_sequences;
  const double began = now_s();
  plan(*step);
  float* hidden =
      static_cast<float*>(reserve(&hidden_, static_cast<size_t>(rows) * shape_.hidden_size * sizeof(float)));
  forward(step->token_ids, step->positions, hidden);
  const double computed = now_s();
  logits(hidden, rows, step->logits);
  const double known = now_s();
  if (step->best != nullptr) choose_best(step->logits, rows, step->best);
  step->forward_s = computed - began;
  step->logits_s = known - computed;
  step->best_s = now_s() - known;
}

void Model::choose_best(const float* logits, int rows, int64_t* best) {
  const int size = shape_.vocab_size;
  threads_.each(rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) best[r] = first_best(logits + static_cast<size_t>(r) * size, size);
  });
}

// Tables are read where they are: they stay there until the step is over.
void Model::plan(const Decode& step) {
  contexts_.clear();
  slots_.clear();
  num_decodes_ = num_tokens_ = step.num_sequences;
  for (int i = 0; i < step.num_sequences; ++i) {
    const int64_t position = step.positions[i];
    Context context{};
    context.blocks = step.block_tables + static_cast<size_t>(i) * step.table_width;
    context.num_queries = 1;
    context.length = static_cast<int32_t>(position + 1);
    context.first_row = i;
    context.window = shape_.window;
    contexts_.push_back(context);
    slots_.push_back(static_cast<int64_t>(context.blocks[position / block_size]) * block_size + position % block_size);
  }
}

}  // namespace muster
