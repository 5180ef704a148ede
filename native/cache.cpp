#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "engine.h"

namespace sightline {

constexpr long PAGE = 1 << 21, SLAB = 1 << 23, SMALL = 1 << 14;

void Cache::Free::operator()(uint8_t* slab) const { std::free(slab); }

// Memory for some blocks more. A layer's part of a block is smaller than a page: in small pages, every part that is looked at would cost
// a walk through the page tables, which takes longer than reading it.
static void add_slab(Cache& cache) {
    const long bytes = (cache.bytes_of_block() + 63) / 64 * 64;
    const long size = bytes < SMALL ? 16 * bytes : (std::max(bytes, SLAB) + PAGE - 1) / PAGE * PAGE;
    uint8_t* slab = (uint8_t*)std::aligned_alloc(bytes < SMALL ? 64 : PAGE, size);
    if (!slab) throw std::bad_alloc();
    cache.slabs.emplace_back(slab);
#if defined(__linux__)
    if (bytes >= SMALL) madvise(slab, size, MADV_HUGEPAGE);
#endif
    for (long at = size / bytes - 1; at >= 0; at--) {  // the first is taken first
        cache.unused.push_back((int)cache.blocks.size());
        cache.blocks.push_back(slab + at * bytes);
        cache.shared_by.push_back(0);
    }
}

static int take_block(Cache& cache) {
    if (cache.unused.empty()) add_slab(cache);
    const int block = cache.unused.back();
    cache.unused.pop_back();
    std::memset(cache.blocks[block], 0, cache.bytes_of_block());  // a weight of 0 times what was there must be 0
    cache.shared_by[block] = 1;
    return block;
}

static void drop_block(Cache& cache, int block) {
    if (--cache.shared_by[block] == 0) cache.unused.push_back(block);
}

int new_sequence(Cache& cache) {
    for (size_t n = 0; n < cache.lengths.size(); n++)
        if (cache.lengths[n] < 0) {
            cache.lengths[n] = 0;
            return (int)n;
        }
    cache.tables.emplace_back();
    cache.lengths.push_back(0);
    return (int)cache.lengths.size() - 1;
}

void forget_sequence(Cache& cache, int sequence) {
    truncate_sequence(cache, sequence, 0);
    cache.lengths[sequence] = -1;
}

void truncate_sequence(Cache& cache, int sequence, long length) {
    auto& table = cache.tables[sequence];
    const size_t kept = (length + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS;
    while (table.size() > kept) drop_block(cache, table.back()), table.pop_back();
    cache.lengths[sequence] = std::min(cache.lengths[sequence], length);
}

static void own_last(Cache& cache, std::vector<int>& table) {
    const int old = table.back();
    if (cache.shared_by[old] == 1) return;
    table.back() = take_block(cache);
    std::memcpy(cache.blocks[table.back()], cache.blocks[old], cache.bytes_of_block());
    drop_block(cache, old);
}

int copy_sequence(Cache& cache, int from) {
    const int to = new_sequence(cache);
    cache.tables[to] = cache.tables[from];
    cache.lengths[to] = cache.lengths[from];
    for (int block : cache.tables[to]) cache.shared_by[block]++;
    return to;
}

// Blocks for positions up to `length`; a block that is going to be written belongs to one sequence alone.
void make_room(Cache& cache, int sequence, long length) {
    auto& table = cache.tables[sequence];
    if (cache.lengths[sequence] % BLOCK_POSITIONS && !table.empty()) own_last(cache, table);
    while ((long)table.size() * BLOCK_POSITIONS < length) table.push_back(take_block(cache));
}

}  // namespace sightline
