// Validates operations and steps before any state changes: a wrong index would be an out-of-bounds access.
#include "engine/engine.h"

namespace sightline {

static std::string text(long number) { return std::to_string(number); }

// ---------------------------------------------------------------------------------------------------------------- operations

namespace {

constexpr int MAX_HEAD_DIM = 1024;

struct OperationCheck {
    const Engine& e;
    std::string name;

    void require(bool holds, const std::string& seen, const std::string& expected) const {
        if (!holds) throw InputError(name + ": " + seen, expected);
    }
    void check_range(const char* field, long value, long low, long high) const {
        require(value >= low && value <= high, std::string(field) + " = " + text(value), text(low) + " to " + text(high));
    }
    long buffer(const char* field, int number) const {
        check_range(field, number, 0, (long)e.widths.size() - 1);
        return e.widths[number];
    }
    const Packed& matrix(int number) const {
        check_range("matrix", number, 0, (long)e.matrices.size() - 1);
        return e.matrices[number];
    }
    void check_fits(const char* field, long needed, long width) const {
        require(needed <= width, std::string(field) + " buffer of " + text(width) + " numbers", "at least " + text(needed));
    }
    void check_array(const char* field, const FloatArray& x, long count) const {
        require(!x || x.count == count, std::string(field) + " of " + text(x.count) + " numbers", text(count));
    }
    void check_norm(const char* field, const Norm& norm, long width) const {
        check_array((std::string(field) + ".gain").c_str(), norm.gain, width);
        check_array((std::string(field) + ".bias").c_str(), norm.bias, width);
    }
    void check_cache_layer(int layer, int kv_heads, int head_dim, const Cache& cache) const {
        check_range("layer", layer, 0, (long)cache.dims.size() - 1);
        require(kv_heads == cache.kv_heads[layer] && head_dim == cache.dims[layer],
                text(kv_heads) + " kv heads of " + text(head_dim) + " numbers",
                "the cache's " + text(cache.kv_heads[layer]) + " of " + text(cache.dims[layer]));
    }
    void check_heads(int heads, int kv_heads, int head_dim, const HeadTransform& transform) const {
        check_range("head_dim", head_dim, 1, MAX_HEAD_DIM);
        check_range("kv_heads", kv_heads, 1, 1 << 20);
        check_range("heads", heads, kv_heads, 1 << 20);
        require(heads % kv_heads == 0, text(heads) + " heads", "a multiple of the " + text(kv_heads) + " kv heads");
        check_range("pairs of frequencies", transform.pairs(), 0, head_dim / 2);
        check_norm("query_norm", transform.query_norm, head_dim);
        check_norm("key_norm", transform.key_norm, head_dim);
        check_array("query_scale", transform.query_scale, (long)heads * head_dim);
        check_array("key_scale", transform.key_scale, (long)kv_heads * head_dim);
    }

    void operator()(const Embed& op) const {
        const Packed& table = matrix(op.matrix);
        check_fits("output", table.inputs, buffer("output", op.output));
        require(!op.positions || op.positions.count == e.max_positions * table.inputs, "positions of " + text(op.positions.count) + " numbers",
                text(e.max_positions) + " positions of " + text(table.inputs));
        check_array("types", op.types, table.inputs);
        check_norm("norm", op.norm, table.inputs);
    }
    void operator()(const Normalize& op) const {
        check_range("offset", op.offset, 0, INT32_MAX / 2);
        check_range("width", op.width, 1, INT32_MAX / 2);
        check_fits("input", op.offset + op.width, buffer("input", op.input));
        check_fits("output", op.offset + op.width, buffer("output", op.output));
        check_norm("norm", op.norm, op.width);
    }
    void operator()(const Linear& op) const {
        const Packed& w = matrix(op.matrix);
        const bool gated = op.gated_width > 0;
        const long width = gated ? op.gated_width : w.rows;
        require(!gated || 2 * ((width + TILE - 1) / TILE * TILE) == w.rows, "gated_width = " + text(width),
                "half of the matrix's " + text(w.rows) + " rows");
        require(gated || !op.gate_scale, "gate_scale without a gate", "gated_width");
        check_fits("input", w.inputs, buffer("input", op.input));
        if (!op.logits) check_fits("output", width, buffer("output", op.output));
        check_array("bias", op.bias, gated ? 2 * width : width);
        check_array("gate_scale", op.gate_scale, 2 * width);
        check_array("column_scale", op.column_scale, width);
        check_norm("norm", op.norm, w.inputs);
    }
    void operator()(const Attend& op) const {
        check_heads(op.heads, op.kv_heads, op.head_dim, op.transform);
        if (!op.cross) check_cache_layer(op.layer, op.kv_heads, op.head_dim, e.cache);
        check_range("layer", op.layer, 0, INT32_MAX);
        check_range("window", op.window, 0, 1L << 31);
        check_range("max_distance", op.max_distance, 0, 1L << 31);
        check_fits("input", (long)(op.heads + (op.cross ? 0 : 2 * op.kv_heads)) * op.head_dim, buffer("input", op.input));
        check_fits("output", (long)op.heads * op.head_dim, buffer("output", op.output));
        check_array("distance_bias", op.distance_bias, op.heads * (2 * op.max_distance + 1));
        check_array("sinks", op.sinks, op.heads);
    }
    void operator()(const StoreKeyValue& op) const {
        check_heads(op.kv_heads, op.kv_heads, op.head_dim, op.transform);
        check_cache_layer(op.layer, op.kv_heads, op.head_dim, e.cache);
        check_fits("input", 2L * op.kv_heads * op.head_dim, buffer("input", op.input));
    }
    void operator()(const Blend& op) const {
        check_fits("input", buffer("output", op.output), buffer("input", op.input));
        require((bool)op.step, "no step", "one number per element of the output");
        check_array("step", op.step, buffer("output", op.output));
    }
    void operator()(const Add& op) const { check_fits("input", buffer("output", op.output), buffer("input", op.input)); }
};

}  // namespace

void check_operation(const Engine& e, const Operation& op) {
    static const char* const NAMES[] = {"Embed", "Normalize", "Linear", "Attend", "StoreKeyValue", "Blend", "Add"};
    std::visit(OperationCheck{e, "operation " + text((long)e.program.size()) + ", " + NAMES[op.index()]}, op);
}

// --------------------------------------------------------------------------------------------------------------------- steps

static void check_tokens(const Engine& e, const Step& step) {
    auto* first = std::get_if<Embed>(&e.program[step.first]);
    if (!first) {
        if (!step.start) throw InputError("a step without hidden states to start from", "the hidden states that its first operation reads");
        return;
    }
    if (!step.tokens) throw InputError("a step without tokens", "at least one token id");
    const long vocabulary = e.matrices[first->matrix].rows;
    for (long row = 0; row < step.rows; row++)
        if (step.tokens[row] < 0 || step.tokens[row] >= vocabulary)
            throw InputError("token id " + text(step.tokens[row]), "ids from 0 to " + text(vocabulary - 1));
}

static void check_position(const Engine& e, long position, long expected) {
    if (position != expected) throw InputError("a token at position " + text(position), "position " + text(expected) + ", the next of the sequence");
    if (position >= e.max_positions)
        throw InputError("a token at position " + text(position), "at most " + text(e.max_positions) + " positions", "a shorter text");
}

static void check_positions(Engine& e, const Step& step) {
    const Cache& cache = e.cache;
    if (step.rows == 1) return check_position(e, step.positions[0], cache.lengths[step.sequences[0]]);
    e.next.assign(cache.lengths.size(), -1);
    for (long row = 0; row < step.rows; row++) {
        long& next = e.next[step.sequences[row]];
        if (next < 0) next = cache.lengths[step.sequences[row]];
        check_position(e, step.positions[row], next++);
    }
}

static void check_sources(const Engine& e, const Step& step) {
    if (!e.has_cross_attention) return;
    if (!e.encoder_cache) throw InputError("a decoder without its encoder", "set_encoder(encoder) first");
    if (!step.sources) throw InputError("a step without sources", "one source per sequence");
}

static void check_logit_rows(const Engine& e, const Step& step) {
    if (step.logit_count && !(is_logits(e.program.back()) && step.logits))
        throw InputError("logits of a model without a head", "hidden states");
    for (long n = 0, before = -1; n < step.logit_count; before = step.logit_rows[n++])
        if (step.logit_rows[n] <= before || step.logit_rows[n] >= step.rows)
            throw InputError("logits after row " + text(step.logit_rows[n]), "rows from 0 to " + text(step.rows - 1) + ", in ascending order");
}

void check_step(Engine& e, const Step& step) {
    if (step.rows < 1) throw InputError("a step without tokens", "at least one token id");
    if (step.first < 0 || step.first >= (long)e.program.size())
        throw InputError("operation " + text(step.first), "one of the program's " + text((long)e.program.size()));
    check_tokens(e, step);
    check_logit_rows(e, step);
    if (is_logits(e.program[step.first])) return;  // needs no sequences
    if (!step.sequences) throw InputError("a step without sequences", "one sequence per row");
    check_positions(e, step);
    check_sources(e, step);
}

void check_read(const Cache& cache, int slot, int layer, int kv_head, long positions) {
    if (layer < 0 || layer >= (int)cache.dims.size())
        throw InputError("layer " + text(layer), "layers from 0 to " + text((long)cache.dims.size() - 1));
    if (kv_head < 0 || kv_head >= cache.kv_heads[layer])
        throw InputError("kv head " + text(kv_head), "heads from 0 to " + text(cache.kv_heads[layer] - 1));
    if (positions < 0 || positions > cache.lengths[slot])
        throw InputError(text(positions) + " positions", "at most " + text(cache.lengths[slot]) + ", the length of the sequence");
}

}  // namespace sightline
