// Small copies to the device, remembered where a workload asks for it: what the host wrote there, it reads back.
#define _GNU_SOURCE
#include "device.h"
#include "remembered.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define MOST_BYTES ((size_t)64 << 10) // of one copy
#define MOST_COPIES 4096              // the oldest one goes where there are more

static struct {
  uintptr_t address;
  size_t bytes;
  char *values;
} copies[MOST_COPIES];
static size_t next_copy; // a ring: the place of the next one, which is also the oldest one's
static int remembers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int remembering(void) { return remembers; }

// The part of the i-th copy that lies in [address, address + bytes), or 0 bytes.
static size_t common(size_t i, uintptr_t address, size_t bytes, uintptr_t *from) {
  uintptr_t end = address + bytes, own_end = copies[i].address + copies[i].bytes;
  if (!copies[i].values || own_end <= address || end <= copies[i].address) return 0;
  *from = copies[i].address > address ? copies[i].address : address;
  return (own_end < end ? own_end : end) - *from;
}

static void add(uintptr_t address, const char *values, size_t bytes) {
  if (!bytes) return;
  free(copies[next_copy].values);
  copies[next_copy].address = address;
  copies[next_copy].bytes = bytes;
  copies[next_copy].values = memcpy(malloc(bytes), values, bytes);
  next_copy = (next_copy + 1) % MOST_COPIES;
}

static void forget_unlocked(uintptr_t address, size_t bytes) {
  for (size_t i = 0; i < MOST_COPIES; i++) {
    uintptr_t from;
    size_t inside = common(i, address, bytes, &from);
    if (!inside) continue;
    uintptr_t begin = copies[i].address;
    size_t all = copies[i].bytes;
    char *values = copies[i].values;
    copies[i].values = 0;
    add(begin, values, from - begin); // what lies before and behind is still as it was
    add(from + inside, values + (from + inside - begin), begin + all - from - inside);
    free(values);
  }
}

void forget(const void *to, size_t bytes) {
  if (!remembers) return;
  pthread_mutex_lock(&lock);
  forget_unlocked((uintptr_t)to, bytes);
  pthread_mutex_unlock(&lock);
}

void remember(const void *to, const void *values, size_t bytes) {
  if (!remembers) return;
  pthread_mutex_lock(&lock);
  forget_unlocked((uintptr_t)to, bytes);
  if (bytes <= MOST_BYTES) add((uintptr_t)to, values, bytes);
  pthread_mutex_unlock(&lock);
}

int recall(void *to, const void *from, size_t bytes) {
  int found = 0;
  if (!remembers) return 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < MOST_COPIES; i++) {
    uintptr_t begin;
    size_t inside = common(i, (uintptr_t)from, bytes, &begin);
    if (!inside) continue;
    memcpy((char *)to + (begin - (uintptr_t)from), copies[i].values + (begin - copies[i].address), inside);
    found = 1;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int mock_recall(void *to, const void *from, size_t bytes) {
  memset(to, 0, bytes);
  return bytes <= MOST_BYTES && recall(to, from, bytes);
}

// A block that PyTorch's allocator hands out is new: what an earlier one held at that address is not to be read from it.
static void handed_out(const void *block, size_t bytes) {
  if (on_device(block)) forget(block, bytes);
}

void mock_remember(int on) {
  void (*on_block)(void (*)(const void *, size_t)) = dlsym(RTLD_DEFAULT, "simgpu_on_block"); // preloaded.c
  if (on_block) on_block(on ? handed_out : 0);
  remembers = on;
}
