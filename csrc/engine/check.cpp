// Checks of what comes from outside, before anything is changed: a wrong number would be a wrong address.
#include "engine/engine.h"

namespace sightline {

static std::string text(long number) { return std::to_string(number); }

// ---------------------------------------------------------------------------------------------------------------- operations

namespace {

constexpr int WIDEST_HEAD = 1024;

struct OperationCheck {
    const Engine& e;
    std::string name;

    void require(bool holds, const std::string& seen, const std::string& expected) const {
        if (!holds) throw InputError(name + ": " + seen, expected);
    }
    void in_range(const char* field, long value, long least, long most) const {
        require(value >= least && value <= most, std::string(field) + " = " + text(value), text(least) + " to " + text(most));
    }
    long buffer(const char* field, int number) const {
        in_range(field, number, 0, (long)e.widths.size() - 1);
        return e.widths[number];
    }
    const Packed& matrix(int number) const {
        in_range("matrix", number, 0, (long)e.matrices.size() - 1);
        return e.matrices[number];
    }
    void fits(const char* field, long needed, long width) const {
        require(needed <= width, std::string(field) + " buffer of " + text(width) + " numbers", "at least " + text(needed));
    }
    void array(const char* field, const FloatArray& x, long count) const {
        require(!x || x.count == count, std::string(field) + " of " + text(x.count) + " numbers", text(count));
    }
    void norm(const char* field, const Norm& norm, long width) const {
        array((std::string(field) + ".gain").c_str(), norm.gain, width);
        array((std::string(field) + ".bias").c_str(), norm.bias, width);
    }
    void cache_layer(int layer, int kv_heads, int head_dim, const Cache& cache) const {
        in_range("layer", layer, 0, (long)cache.dims.size() - 1);
        require(kv_heads == cache.kv_heads[layer] && head_dim == cache.dims[layer],
                text(kv_heads) + " kv heads of " + text(head_dim) + " numbers",
                "the cache's " + text(cache.kv_heads[layer]) + " of " + text(cache.dims[layer]));
    }
    void heads(int heads, int kv_heads, int head_dim, const HeadTransform& transform) const {
        in_range("head_dim", head_dim, 1, WIDEST_HEAD);
        in_range("kv_heads", kv_heads, 1, 1 << 20);
        in_range("heads", heads, kv_heads, 1 << 20);
        require(heads % kv_heads == 0, text(heads) + " heads", "a multiple of the " + text(kv_heads) + " kv heads");
        in_range("pairs of frequencies", transform.pairs(), 0, head_dim / 2);
        norm("query_norm", transform.query_norm, head_dim);
        norm("key_norm", transform.key_norm, head_dim);
        array("query_scale", transform.query_scale, (long)heads * head_dim);
        array("key_scale", transform.key_scale, (long)kv_heads * head_dim);
    }

    void operator()(const Embed& op) const {
        const Packed& table = matrix(op.matrix);
        fits("output", table.inputs, buffer("output", op.output));
        require(!op.positions || op.positions.count == e.max_positions * table.inputs, "positions of " + text(op.positions.count) + " numbers",
                text(e.max_positions) + " positions of " + text(table.inputs));
        array("types", op.types, table.inputs);
        norm("norm", op.norm, table.inputs);
    }
    void operator()(const Normalize& op) const {
        in_range("offset", op.offset, 0, INT32_MAX / 2);
        in_range("width", op.width, 1, INT32_MAX / 2);
        fits("input", op.offset + op.width, buffer("input", op.input));
        fits("output", op.offset + op.width, buffer("output", op.output));
        norm("norm", op.norm, op.width);
    }
    void operator()(const Linear& op) const {
        const Packed& w = matrix(op.matrix);
        const bool gated = op.gated_width > 0;
        const long width = gated ? op.gated_width : w.rows;
        require(!gated || 2 * ((width + TILE - 1) / TILE * TILE) == w.rows, "gated_width = " + text(width),
                "half of the matrix's " + text(w.rows) + " rows");
        require(gated || !op.gate_scale, "gate_scale without a gate", "gated_width");
        fits("input", w.inputs, buffer("input", op.input));
        if (!op.logits) fits("output", width, buffer("output", op.output));
        array("bias", op.bias, gated ? 2 * width : width);
        array("gate_scale", op.gate_scale, 2 * width);
        array("column_scale", op.column_scale, width);
        norm("norm", op.norm, w.inputs);
    }
    void operator()(const Attend& op) const {
        heads(op.heads, op.kv_heads, op.head_dim, op.transform);
        if (!op.cross) cache_layer(op.layer, op.kv_heads, op.head_dim, e.cache);
        in_range("layer", op.layer, 0, INT32_MAX);
        in_range("window", op.window, 0, 1L << 31);
        in_range("max_distance", op.max_distance, 0, 1L << 31);
        fits("input", (long)(op.heads + (op.cross ? 0 : 2 * op.kv_heads)) * op.head_dim, buffer("input", op.input));
        fits("output", (long)op.heads * op.head_dim, buffer("output", op.output));
        array("distance_bias", op.distance_bias, op.heads * (2 * op.max_distance + 1));
        array("sinks", op.sinks, op.heads);
    }
    void operator()(const StoreKeyValue& op) const {
        heads(op.kv_heads, op.kv_heads, op.head_dim, op.transform);
        cache_layer(op.layer, op.kv_heads, op.head_dim, e.cache);
        fits("input", 2L * op.kv_heads * op.head_dim, buffer("input", op.input));
    }
    void operator()(const Blend& op) const {
        fits("input", buffer("output", op.output), buffer("input", op.input));
        require((bool)op.step, "no step", "a number for each of the output's");
        array("step", op.step, buffer("output", op.output));
    }
    void operator()(const Add& op) const { fits("input", buffer("output", op.output), buffer("input", op.input)); }
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
        if (!step.start) throw InputError("a step without hidden states to start from", "those that its first operation reads");
        return;
    }
    if (!step.tokens) throw InputError("a step without tokens", "ids from 0 on, at least one");
    const long vocabulary = e.matrices[first->matrix].rows;
    for (long row = 0; row < step.rows; row++)
        if (step.tokens[row] < 0 || step.tokens[row] >= vocabulary)
            throw InputError("tokens hold " + text(step.tokens[row]), "ids from 0 to " + text(vocabulary - 1));
}

static void check_position(const Engine& e, long position, long expected) {
    if (position != expected) throw InputError("a token at position " + text(position), "position " + text(expected) + ", the sequence's next");
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
    if (!e.encoder_cache) throw InputError("a decoder without its encoder", "look_at(encoder) first");
    if (!step.sources) throw InputError("a step without sources", "a source for each sequence");
}

static void check_logit_rows(const Engine& e, const Step& step) {
    if (step.logit_count && !(gives_logits(e.program.back()) && step.logits))
        throw InputError("logits of a model without a head", "hidden states");
    for (long n = 0, before = -1; n < step.logit_count; before = step.logit_rows[n++])
        if (step.logit_rows[n] <= before || step.logit_rows[n] >= step.rows)
            throw InputError("logits after row " + text(step.logit_rows[n]), "rows from 0 to " + text(step.rows - 1) + ", in ascending order");
}

void check_step(Engine& e, const Step& step) {
    if (step.rows < 1) throw InputError("a step without tokens", "ids from 0 on, at least one");
    if (step.first < 0 || step.first >= (long)e.program.size())
        throw InputError("operation " + text(step.first), "one of the program's " + text((long)e.program.size()));
    check_tokens(e, step);
    check_logit_rows(e, step);
    if (gives_logits(e.program[step.first])) return;  // no sequence is involved
    if (!step.sequences) throw InputError("a step without sequences", "a sequence for each row");
    check_positions(e, step);
    check_sources(e, step);
}

void check_read(const Cache& cache, int slot, int layer, int kv_head, long positions) {
    if (layer < 0 || layer >= (int)cache.dims.size())
        throw InputError("layer " + text(layer), "layers from 0 to " + text((long)cache.dims.size() - 1));
    if (kv_head < 0 || kv_head >= cache.kv_heads[layer])
        throw InputError("kv head " + text(kv_head), "heads from 0 to " + text(cache.kv_heads[layer] - 1));
    if (positions < 0 || positions > cache.lengths[slot])
        throw InputError(text(positions) + " positions", "at most the " + text(cache.lengths[slot]) + " that the sequence has");
}

}  // namespace sightline
