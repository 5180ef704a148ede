#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "engine/engine.h"

namespace sightline {

constexpr long PAGE = 1 << 21, SLAB = 1 << 23, SMALL = 1 << 14;

void Cache::Free::operator()(uint8_t* slab) const { std::free(slab); }

// Allocates memory for more blocks, in huge pages: a layer's part of a block is so small that with normal pages each read would cost a
// TLB miss, which takes longer than the read itself.
static void add_slab(Cache& cache) {
    const long bytes = (cache.bytes_of_block() + 63) / 64 * 64;
    const long size = bytes < SMALL ? 16 * bytes : (std::max(bytes, SLAB) + PAGE - 1) / PAGE * PAGE;
    uint8_t* slab = (uint8_t*)std::aligned_alloc(bytes < SMALL ? 64 : PAGE, size);
    if (!slab) throw std::bad_alloc();
    cache.slabs.emplace_back(slab);
#if defined(__linux__)
    if (bytes >= SMALL) madvise(slab, size, MADV_HUGEPAGE);
#endif
    for (long at = size / bytes - 1; at >= 0; at--) {  // so that the first block is used first
        cache.free_blocks.push_back((int)cache.blocks.size());
        cache.blocks.push_back(slab + at * bytes);
        cache.shared_by.push_back(0);
    }
}

static int take_block(Cache& cache) {
    if (cache.free_blocks.empty()) add_slab(cache);
    const int block = cache.free_blocks.back();
    cache.free_blocks.pop_back();
    std::memset(cache.blocks[block], 0, cache.bytes_of_block());  // an attention weight of 0 times stale memory must be 0
    cache.shared_by[block] = 1;
    return block;
}

static void drop_block(Cache& cache, int block) {
    if (--cache.shared_by[block] == 0) cache.free_blocks.push_back(block);
}

static int free_slot(Cache& cache) {
    for (size_t n = 0; n < cache.lengths.size(); n++)
        if (cache.lengths[n] < 0) return (int)n;
    cache.tables.emplace_back();
    cache.generations.push_back(0);
    cache.lengths.push_back(-1);
    return (int)cache.lengths.size() - 1;
}

Handle new_sequence(Cache& cache) {
    const int slot = free_slot(cache);
    cache.lengths[slot] = 0;
    return (Handle)cache.generations[slot] << 32 | slot;
}

static std::string describe(Handle handle) {
    if (handle < 0) return "sequence " + std::to_string(handle);
    const Handle slot = handle & 0xffffffff, before = handle >> 32;
    return "sequence " + std::to_string(slot) + (before ? " (in use " + std::to_string(before + 1) + " times)" : "");
}

int slot_of(const Cache& cache, Handle handle) {
    const Handle slot = handle & 0xffffffff;
    if (handle < 0 || slot >= (Handle)cache.lengths.size()) throw InputError(describe(handle), "a handle from begin() or copy()", "begin()");
    if (cache.lengths[slot] < 0 || cache.generations[slot] != handle >> 32)
        throw InputError(describe(handle) + ", which was freed", "a live sequence", "begin()");
    return (int)slot;
}

static void truncate_slot(Cache& cache, int slot, long length) {
    auto& table = cache.tables[slot];
    const size_t kept = (length + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS;
    while (table.size() > kept) drop_block(cache, table.back()), table.pop_back();
    cache.lengths[slot] = std::min(cache.lengths[slot], length);
}

void truncate_sequence(Cache& cache, Handle handle, long length) {
    const int slot = slot_of(cache, handle);
    if (length < 0) throw InputError("a sequence truncated to " + std::to_string(length) + " tokens", "0 or more");
    truncate_slot(cache, slot, length);
}

void free_sequence(Cache& cache, Handle handle) {
    const int slot = slot_of(cache, handle);
    truncate_slot(cache, slot, 0);
    cache.lengths[slot] = -1;
    cache.generations[slot]++;
}

static void unshare_last_block(Cache& cache, std::vector<int>& table) {
    const int old = table.back();
    if (cache.shared_by[old] == 1) return;
    table.back() = take_block(cache);
    std::memcpy(cache.blocks[table.back()], cache.blocks[old], cache.bytes_of_block());
    drop_block(cache, old);
}

Handle copy_sequence(Cache& cache, Handle from) {
    const int old = slot_of(cache, from);
    const Handle copy = new_sequence(cache);
    const int slot = slot_of(cache, copy);
    cache.tables[slot] = cache.tables[old];
    cache.lengths[slot] = cache.lengths[old];
    for (int block : cache.tables[slot]) cache.shared_by[block]++;
    return copy;
}

// Allocates blocks for positions up to `length`; a block that will be written must not be shared (copy on write).
void make_room(Cache& cache, int slot, long length) {
    auto& table = cache.tables[slot];
    if (cache.lengths[slot] % BLOCK_POSITIONS && !table.empty()) unshare_last_block(cache, table);
    while ((long)table.size() * BLOCK_POSITIONS < length) table.push_back(take_block(cache));
}

}  // namespace sightline
