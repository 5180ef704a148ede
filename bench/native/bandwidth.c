// Memory read bandwidth: for each line on stdin, `bandwidth THREADS` reads 1 GiB in large pages and prints GB/s.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PIECE = 1 << 20, LANES = 32 };
static const size_t BYTES = (size_t)1 << 30;
static uint64_t *memory;
static size_t next;  // the next piece to read: dynamic scheduling, so that a slow core does not delay the others
static uint64_t kept;

static void *read_pieces(void *unused) {
  uint64_t sums[LANES] = {0};
  for (;;) {
    size_t piece = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    if ((piece + 1) * PIECE > BYTES) break;
    const uint64_t *x = memory + piece * (PIECE / sizeof *x);
    for (size_t n = 0; n < PIECE / sizeof *x; n += LANES)
      for (size_t lane = 0; lane < LANES; lane++) sums[lane] += x[n + lane];
  }
  for (size_t lane = 0; lane < LANES; lane++) __atomic_fetch_add(&kept, sums[lane], __ATOMIC_RELAXED);
  return unused;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static double measure(int threads) {
  pthread_t team[64];
  next = 0;
  double start = seconds();
  for (int n = 1; n < threads; n++) pthread_create(&team[n], NULL, read_pieces, NULL);
  read_pieces(NULL);
  for (int n = 1; n < threads; n++) pthread_join(team[n], NULL);
  return BYTES / (seconds() - start) / 1e9;
}

int main(int count, char **words) {
  int threads = count > 1 ? atoi(words[1]) : 2;
  if (threads < 1 || threads > 64 || posix_memalign((void **)&memory, 1 << 21, BYTES)) return 1;
#ifdef MADV_HUGEPAGE
  madvise(memory, BYTES, MADV_HUGEPAGE);
#endif
  for (size_t n = 0; n < BYTES / sizeof *memory; n++) memory[n] = n;
  for (int character; (character = getchar()) != EOF;) {
    if (character != '\n') continue;
    double best = 0;
    for (int n = 0; n < 3; n++) {
      double speed = measure(threads);
      if (speed > best) best = speed;
    }
    printf("%.3f\n", best);
    fflush(stdout);
  }
  return kept == 1;
}
