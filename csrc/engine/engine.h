// A model as a program: a list of operations over rows of floats. One call runs it for a batch of tokens, from the embedding to the logits.
//
// A row is one token of one sequence. One call may mix many sequences, chunks of prompts and single decoding steps.
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

// A caller's reference to a sequence: the slot in the lower half, the slot's generation in the upper half. The generation makes a freed
// handle detectably stale even after its slot is reused.
using Handle = int64_t;

// Keys and values, in blocks of 32 positions that sequences may share. A block has, for each layer and kv head, keys [tile][dim][8] and
// values [position][dim], in float16 or float32.
struct Cache {
    std::vector<int> kv_heads, dims;      // of each layer
    std::vector<long> offset;             // of each layer in a block, in elements
    long elements = 0;                    // per block
    bool half = true;
    struct Free {
        void operator()(uint8_t* slab) const;
    };
    std::vector<std::unique_ptr<uint8_t, Free>> slabs;
    std::vector<uint8_t*> blocks;         // pointers into the slabs
    std::vector<int> shared_by;           // reference counts of the blocks
    std::vector<std::vector<int>> tables; // sequence → blocks
    std::vector<long> lengths;            // −1: the slot is free
    std::vector<int32_t> generations;     // how many times each slot was freed
    std::vector<int> free_blocks;
    long bytes_of_block() const { return elements * (half ? 2 : 4); }
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
    const Cache* encoder_cache = nullptr;  // read by cross-attention
    long max_inputs = 0, max_positions = 0;
    std::vector<long> query_widths;  // of each Attend operation
    bool has_cross_attention = false;
    // scratch memory; grows with the rows of a step
    std::vector<float> memory;
    std::vector<float*> buffers;
    std::vector<int8_t> bytes;
    std::vector<float> scales, sums, normed;
    std::vector<std::vector<float>> thread_scratch;
    std::vector<Angles> angles;
    std::vector<int32_t> slots, source_slots;
    std::vector<long> next;  // used by check_step: the next position of each slot, −1 if the step has not mentioned it yet
};

struct Step {
    long rows;
    const int32_t *tokens, *sequences, *positions, *sources;  // slots; a source is a sequence of the encoder's cache
    const int32_t* logit_rows;  // rows that need logits, ascending
    long logit_count;
    float* logits;          // [logit_count, vocabulary]
    float* const* queries;  // outputs for the rotated queries of each Attend operation, [rows, heads · head_dim]; null: not recorded
    float* hidden;          // output for the last hidden states, [rows, width]; null: not recorded
    const float* start;     // the residual stream to start from; null: embed the tokens
    long first;             // the first operation to run
};

// Rows destroyed by packing: more than 90% of their weights are off by more than half of their magnitude.
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
int slot_of(const Cache&, Handle);  // throws InputError for an unknown or freed handle
void free_sequence(Cache&, Handle);
void truncate_sequence(Cache&, Handle, long length);
Handle copy_sequence(Cache&, Handle from);  // shares all blocks; the last one is copied on write
void make_room(Cache&, int slot, long length);

// Throw InputError, before any state changes, if an operation or step refers to something that does not exist.
void check_operation(const Engine&, const Operation&);
void check_step(Engine&, const Step&);
void check_read(const Cache&, int slot, int layer, int kv_head, long positions);

}  // namespace sightline
