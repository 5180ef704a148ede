// What comes from outside, before a step changes anything: a wrong number would be a wrong place in memory.
#include "engine/engine.h"

namespace sightline {

static std::string text(long number) { return std::to_string(number); }

static void check_tokens(const Engine& e, const Step& step) {
    const Operation& first = e.program[step.first];
    if (first.kind != Kind::embed) {
        if (!step.from) throw Refusal("a step without hidden states to begin with", "those that its first operation reads");
        return;
    }
    const long words = e.matrices[first.matrix].rows;
    for (long row = 0; row < step.rows; row++)
        if (step.tokens[row] < 0 || step.tokens[row] >= words)
            throw Refusal("tokens hold " + text(step.tokens[row]), "ids from 0 to " + text(words - 1));
}

static void check_position(const Engine& e, long position, long expected) {
    if (position != expected) throw Refusal("a token at position " + text(position), "position " + text(expected) + ", the sequence's next");
    if (position >= e.max_positions)
        throw Refusal("a token at position " + text(position), "at most " + text(e.max_positions) + " positions", "a shorter text");
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
    if (!e.crosses) return;
    if (!e.looked_at) throw Refusal("a decoder without its encoder", "one that looks at an encoder");
    if (!step.sources) throw Refusal("a step without sources", "a source for each sequence");
}

static void check_wanted(const Engine& e, const Step& step) {
    if (step.wanted_count && !(e.program.back().last && step.logits)) throw Refusal("logits of a model without a head", "hidden states");
    for (long n = 0, before = -1; n < step.wanted_count; before = step.wanted[n++])
        if (step.wanted[n] <= before || step.wanted[n] >= step.rows)
            throw Refusal("logits after row " + text(step.wanted[n]), "rows from 0 to " + text(step.rows - 1) + ", in their order");
}

void check_step(Engine& e, const Step& step) {
    if (step.rows < 1) throw Refusal("a step without tokens", "ids from 0 on, at least one");
    if (step.first < 0 || step.first >= (long)e.program.size())
        throw Refusal("operation " + text(step.first), "one of the " + text((long)e.program.size()) + " that the program has");
    check_tokens(e, step);
    check_wanted(e, step);
    if (e.program[step.first].last) return;  // logits of given states: no sequence is named
    if (!step.sequences) throw Refusal("a step without sequences", "a sequence for each row");
    check_positions(e, step);
    check_sources(e, step);
}

void check_read(const Cache& cache, int slot, int layer, int kv_head, long positions) {
    if (layer < 0 || layer >= (int)cache.dims.size())
        throw Refusal("layer " + text(layer), "layers from 0 to " + text((long)cache.dims.size() - 1));
    if (kv_head < 0 || kv_head >= cache.kv_heads[layer])
        throw Refusal("kv head " + text(kv_head), "heads from 0 to " + text(cache.kv_heads[layer] - 1));
    if (positions < 0 || positions > cache.lengths[slot])
        throw Refusal(text(positions) + " positions", "at most the " + text(cache.lengths[slot]) + " that the sequence has");
}

}  // namespace sightline
