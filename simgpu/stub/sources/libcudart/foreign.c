// Kernels that are not PyTorch's own, and where they may have written. Nothing says how many arguments a kernel has or
// how long each is. So every aligned word that is an address of the device is taken for a pointer that it was given:
// in the bytes from each argument on, and in what the host copied to the device before (tables of pointers, tensor
// maps). A kernel may write to the whole tensor that such a pointer points into.
#define _GNU_SOURCE
#include "device.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS 256           // looked at for each kernel
#define LONGEST ((size_t)4096)  // bytes looked at from each argument on: the limit for all arguments of a kernel
#define APART ((uintptr_t)1 << 18) // bytes between arguments, at most
#define POINTERS (1 << 16)      // remembered; with more of them, everything counts as written
#define COPIED ((size_t)64 << 10) // bytes of a copy that are looked at

struct pointers {
  uintptr_t at[POINTERS];
  unsigned long kernel[POINTERS]; // the last one that was given it
  size_t count;
  unsigned slots[2 * POINTERS]; // 1 + index, by hash
};
static struct pointers given, in_copies;
static unsigned long kernels, everywhere; // how many ran; the last one that may have written anywhere
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int add(struct pointers *all, uintptr_t pointer) {
  size_t slot = (pointer >> 4) * 0x9E3779B97F4A7C15ull >> 47;
  while (all->slots[slot] && all->at[all->slots[slot] - 1] != pointer) slot = (slot + 1) % (2 * POINTERS);
  if (!all->slots[slot]) {
    if (all->count == POINTERS) return 0;
    all->at[all->count] = pointer;
    all->slots[slot] = ++all->count;
  }
  all->kernel[all->slots[slot] - 1] = kernels;
  return 1;
}

static void clear(struct pointers *all) {
  memset(all->slots, 0, sizeof all->slots);
  all->count = 0;
}

static void may_write_anywhere(void) {
  clear(&given);
  everywhere = kernels;
}

static void find_pointers(struct pointers *all, const void *words, size_t bytes) {
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    uintptr_t word;
    memcpy(&word, (const char *)words + i, sizeof word);
    if (on_device((void *)word) && !add(all, word)) {
      may_write_anywhere();
      return;
    }
  }
}

// Copies what can be read of this process's memory from there on; returns how many bytes.
static size_t readable(void *to, const void *from, size_t bytes) {
  static int memory = -1;
  static pid_t owner;
  if (owner != getpid()) { // a forked process has a memory of its own
    if (memory >= 0) close(memory);
    memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    owner = getpid();
  }
  ssize_t read = memory < 0 ? -1 : pread(memory, to, bytes, (off_t)(uintptr_t)from);
  return read < 0 ? 0 : read;
}

// Whether this can be the address of one more argument: those of one launch lie close together.
static int follows(const void *address, const void *before) {
  return (uintptr_t)address - ((uintptr_t)before - APART) < 2 * APART;
}

// `arguments`: the address of each argument, as cuLaunchKernel has them. `buffer`: all of them in one piece, or 0.
void launched_elsewhere(cudaStream_t stream, void **arguments, const void *buffer, size_t bytes) {
  void *addresses[ARGUMENTS];
  char words[LONGEST];
  pthread_mutex_lock(&lock);
  kernels++;
  if (buffer) find_pointers(&given, buffer, bytes);
  size_t count = arguments ? readable(addresses, arguments, sizeof addresses) / sizeof *addresses : 0;
  if (!buffer && !count) may_write_anywhere(); // its arguments are not known, or cannot be read
  for (size_t i = 0; i < count; i++) {
    if (i && !follows(addresses[i], arguments) && !follows(addresses[i], addresses[i - 1])) break;
    size_t found = readable(words, addresses[i], LONGEST);
    if (!found) break;
    find_pointers(&given, words, found);
  }
  pthread_mutex_unlock(&lock);
  launched(stream);
}

void copied_to_device(const void *from, size_t bytes) {
  if (bytes < sizeof(uintptr_t)) return;
  pthread_mutex_lock(&lock);
  if (bytes <= COPIED) find_pointers(&in_copies, from, bytes);
  pthread_mutex_unlock(&lock);
}

// The number of the last kernel of these that may have written into [from, from + bytes); 0 if none has.
unsigned long mock_foreign_kernel(const void *from, size_t bytes) {
  uintptr_t begin = (uintptr_t)from;
  pthread_mutex_lock(&lock);
  unsigned long last = everywhere;
  for (size_t i = 0; i < given.count; i++)
    if (given.at[i] - begin < bytes && given.kernel[i] > last) last = given.kernel[i];
  for (size_t i = 0; i < in_copies.count; i++)
    if (in_copies.at[i] - begin < bytes) last = kernels;
  pthread_mutex_unlock(&lock);
  return last;
}

unsigned long mock_foreign_kernels(void) { return __atomic_load_n(&kernels, __ATOMIC_RELAXED); }
