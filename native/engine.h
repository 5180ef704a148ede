// A model as a program: a list of operations over rows of numbers. One call runs it for some tokens, from the embedding to the logits.
//
// A row is one token of one sequence. Rows of many sequences, a prompt's chunk and single steps may stand side by side.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "matrix.h"
#include "training.h"

namespace sightline {

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
    std::vector<long> lengths;
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
    long most_inputs = 0;
    // scratch, grown when more rows come
    std::vector<float> memory;
    std::vector<float*> buffers;
    std::vector<int8_t> bytes;
    std::vector<float> scales, sums, normed;
    std::vector<std::vector<float>> own;  // of each thread
    std::vector<Angles> angles;
};

struct Step {
    long rows;
    const int32_t *tokens, *sequences, *positions, *sources;  // a source is a sequence of the memory
    const int32_t* wanted;  // rows whose logits are asked for, ascending
    long wanted_count;
    float* logits;          // [wanted, vocabulary]
    float* const* queries;  // for each attend operation: where its rotated queries go [rows, heads · dim]; null: nowhere
    float* hidden;          // where the last hidden states go, [rows, width]; null: nowhere
    const float* from;      // the residual stream where it is given, instead of the tokens; null: it is embedded
    long first;             // operation to begin with
};

struct EngineKernels {
    void (*run)(Engine&, const Step&);
    void (*pack)(const float* weights, long stride, const Packed& to);
    void (*unpack_row)(const Packed& from, long row, float* to);
    // keys [positions, dim] or values of one kv head, as float32
    void (*read_cache)(const Cache&, int sequence, int layer, int kv_head, long positions, float* keys, float* values);
};

extern const EngineKernels* engine_kernels;

// The cache's bookkeeping.
int new_sequence(Cache&);
void forget_sequence(Cache&, int sequence);
void truncate_sequence(Cache&, int sequence, long length);
int copy_sequence(Cache&, int from);  // blocks that are full are shared, the last is copied
void make_room(Cache&, int sequence, long length);

}  // namespace sightline
