// A model as a program: a list of operations over rows of numbers. One call runs it for some tokens, from the embedding to the logits.
//
// A row is one token of one sequence. Rows of many sequences, chunks of a prompt and single decoding steps may be in the same call.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/matrix.h"
#include "engine/operations.h"
#include "errors.h"

namespace sightline {

constexpr long BLOCK_POSITIONS = 32;

// A sequence as callers know it: its slot in the cache in the lower half, the slot's generation in the upper half. A freed handle is
// recognized as stale although its slot may belong to another sequence by then.
using Handle = int64_t;

// Keys and values, in blocks of 32 positions that sequences may share. A block has, for each layer and kv head, keys [tile][dim][8] and
// values [position][dim], in float16 or float32.
struct Cache {
    std::vector<int> kv_heads, dims;      // of each layer
    std::vector<long> offset;             // of each layer in a block, in numbers
    long numbers = 0;                     // of a block
    bool half = true;
    struct Free {
        void operator()(uint8_t* slab) const;
    };
    std::vector<std::unique_ptr<uint8_t, Free>> slabs;
    std::vector<uint8_t*> blocks;         // parts of the slabs
    std::vector<int> shared_by;           // sequences that have the block
    std::vector<std::vector<int>> tables; // sequence → blocks
    std::vector<long> lengths;            // −1: the slot is free
    std::vector<int32_t> generations;     // how often each slot was freed
    std::vector<int> free_blocks;
    long bytes_of_block() const { return numbers * (half ? 2 : 4); }
};

// cos and sin of each row's position times each frequency, shared by all layers with the same frequencies.
struct Angles {
    int pairs;
    const float* frequencies;
    float amplitude;
    std::vector<float> table;  // [row][cos …, sin …]
};

struct Engine {
    Engine() = default;
    Engine(const Engine&) = delete;
    std::vector<Operation> program;
    std::vector<Packed> matrices;
    std::vector<std::shared_ptr<const void>> owners;  // of the matrices' memory
    std::vector<long> widths;  // of the buffers
    Cache cache;
    const Cache* encoder_cache = nullptr;  // that cross-attention reads
    long max_inputs = 0, max_positions = 0;
    std::vector<long> query_widths;  // of each Attend operation
    bool has_cross_attention = false;
    // scratch memory, which grows with the rows of a step
    std::vector<float> memory;
    std::vector<float*> buffers;
    std::vector<int8_t> bytes;
    std::vector<float> scales, sums, normed;
    std::vector<std::vector<float>> thread_scratch;
    std::vector<Angles> angles;
    std::vector<int32_t> slots, source_slots;
    std::vector<long> next;  // while a step is checked: the next position of each slot, −1 where it is not in the step yet
};

struct Step {
    long rows;
    const int32_t *tokens, *sequences, *positions, *sources;  // slots; a source is a sequence of the encoder's cache
    const int32_t* logit_rows;  // rows whose logits are computed, ascending
    long logit_count;
    float* logits;          // [logit_count, vocabulary]
    float* const* queries;  // for each Attend operation: where its rotated queries go, [rows, heads · head_dim]; null: nowhere
    float* hidden;          // where the last hidden states go, [rows, width]; null: nowhere
    const float* start;     // the residual stream to start from; null: the tokens are embedded
    long first;             // operation to start with
};

// Rows that packing destroyed: more than nine in ten of their weights are off by more than half of their size.
struct PackingDamage {
    long rows = 0, first = -1;
};

struct EngineKernels {
    void (*run)(Engine&, const Step&);
    PackingDamage (*pack)(const float* weights, long stride, const Packed& to);
    void (*unpack_row)(const Packed& from, long row, float* to);
    // keys [positions, dim] or values of one kv head, as float32
    void (*read_cache)(const Cache&, int slot, int layer, int kv_head, long positions, float* keys, float* values);
};

// The cache's bookkeeping.
Handle new_sequence(Cache&);
int slot_of(const Cache&, Handle);  // InputError for a handle that is unknown or was freed
void free_sequence(Cache&, Handle);
void truncate_sequence(Cache&, Handle, long length);
Handle copy_sequence(Cache&, Handle from);  // full blocks are shared, the last is copied when it is written
void make_room(Cache&, int slot, long length);

// InputError, before anything is changed, unless all that an operation or a step refers to exists.
void check_operation(const Engine&, const Operation&);
void check_step(Engine&, const Step&);
void check_read(const Cache&, int slot, int layer, int kv_head, long positions);

}  // namespace sightline
