// A model as a program: a list of operations over rows of numbers. One call runs it for some tokens, from the embedding to the logits.
//
// A row is one token of one sequence. Rows of many sequences, a prompt's chunk and single steps may stand side by side.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/matrix.h"
#include "training/kernels.h"

namespace sightline {

// What came from outside does not fit: what was seen, what was expected, what to do. Python raises it as its InputError.
struct Refusal : std::invalid_argument {
    Refusal(const std::string& seen, std::string expected, std::string fix = "")
        : std::invalid_argument(seen), expected(std::move(expected)), fix(std::move(fix)) {}
    std::string expected, fix;
};

enum class Kind { embed, norm, linear, attend, blend, add, keep };
enum class NormKind { none, layer, rms, unit };
enum class Curve { none, relu, gelu, gelu_tanh, silu, relu_squared, tanh };

struct Norm {
    NormKind kind = NormKind::none;
    float epsilon = 0;
    const float *gain = nullptr, *bias = nullptr;
};

// What q and k pass before they meet: a norm for each head, a rotation, the unit sphere with a scale.
struct HeadWork {
    Norm query, key;                                 // over one head
    int pairs = 0, angles = 0;                       // of numbers that RoPE turns; which of the engine's tables
    const float* frequencies = nullptr;              // [pairs]
    float amplitude = 1;                             // YaRN
    bool unit = false;                               // cosine, nGPT
    const float *query_scale = nullptr, *key_scale = nullptr;  // [heads · dim], [kv_heads · dim], after `unit`
};

struct Operation {
    Kind kind;
    int in = 0, out = 0;         // buffers
    Norm norm;                   // linear, norm: of what is read
    int matrix = -1;             // linear, embed
    const float* bias = nullptr;
    float scale = 1;             // embed: of the token's vector; linear: of the input
    Curve curve = Curve::none;   // linear: of the result; a gated matrix has pairs of tiles, gate and up
    bool gated = false, adds = false, last = false;  // adds to `out`; `last`: the logits, of the rows that are wanted
    const float* factor = nullptr;                   // linear: multiplies the result, column by column
    float softcap = 0;
    const float* positions = nullptr;                // embed: table [position][width]
    const float* types = nullptr;                    // embed: the vector of type 0
    // attend; linear: a gated result is `dim` wide; norm: `dim` numbers from number `layer` on
    int layer = 0, heads = 0, kv_heads = 0, dim = 0;
    HeadWork work;
    float score_scale = 1, score_cap = 0;
    long window = 0;                                 // 0: none
    bool causal = true, cross = false;               // cross: queries alone, which look at the memory
    const float* distance_bias = nullptr;            // [heads][2 · reach + 1], by key − query
    long reach = 0;
    const float* sinks = nullptr;                    // [heads]
    // blend: out = unit(out + step (unit(in) − out)), nGPT
    const float* step = nullptr;
};

constexpr long BLOCK_POSITIONS = 32;

// A sequence as it is known outside: its slot in the cache in the lower half, and above it how often that slot was forgotten before. So a
// handle that was forgotten is known to be stale, although its slot may belong to another sequence now.
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
    std::vector<int32_t> forgotten;       // how often each slot was
    std::vector<int> unused;
    long bytes_of_block() const { return numbers * (half ? 2 : 4); }
};

// cos and sin of each row's position times each frequency, once for all layers that turn alike.
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
    std::vector<long> widths;  // of the buffers
    Cache cache;
    const Cache* looked_at = nullptr;  // of the encoder that this decoder looks at
    long most_inputs = 0, max_positions = 0;
    int attends = 0;       // operations that have queries
    bool crosses = false;  // some of them look at an encoder's cache
    // scratch, grown when more rows come
    std::vector<float> memory;
    std::vector<float*> buffers;
    std::vector<int8_t> bytes;
    std::vector<float> scales, sums, normed;
    std::vector<std::vector<float>> own;  // of each thread
    std::vector<Angles> angles;
    std::vector<int32_t> slots, source_slots;
    std::vector<long> next;  // while a step is checked: the position that each slot expects, −1 where it is not in the step yet
};

struct Step {
    long rows;
    const int32_t *tokens, *sequences, *positions, *sources;  // slots; a source is a sequence of the memory
    const int32_t* wanted;  // rows whose logits are asked for, ascending
    long wanted_count;
    float* logits;          // [wanted, vocabulary]
    float* const* queries;  // for each attend operation: where its rotated queries go [rows, heads · dim]; null: nowhere
    float* hidden;          // where the last hidden states go, [rows, width]; null: nowhere
    const float* from;      // the residual stream where it is given, instead of the tokens; null: it is embedded
    long first;             // operation to begin with
};

// Rows that packing destroyed: of ten numbers, more than nine are off by more than half of their size.
struct Damage {
    long rows = 0, first = -1;
};

struct EngineKernels {
    void (*run)(Engine&, const Step&);
    Damage (*pack)(const float* weights, long stride, const Packed& to);
    void (*unpack_row)(const Packed& from, long row, float* to);
    // keys [positions, dim] or values of one kv head, as float32
    void (*read_cache)(const Cache&, int slot, int layer, int kv_head, long positions, float* keys, float* values);
};

// The cache's bookkeeping.
Handle new_sequence(Cache&);
int slot_of(const Cache&, Handle);  // of a sequence that is alive
void forget_sequence(Cache&, Handle);
void truncate_sequence(Cache&, Handle, long length);
Handle copy_sequence(Cache&, Handle from);  // blocks that are full are shared, the last is copied
void make_room(Cache&, int slot, long length);

// Everything that a step names is there, before anything is changed.
void check_step(Engine&, const Step&);
void check_read(const Cache&, int slot, int layer, int kv_head, long positions);

}  // namespace sightline
