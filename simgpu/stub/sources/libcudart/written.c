// Where kernels may have written: those that are not PyTorch's own (foreign ones), or all of them. Nothing says how many
// arguments a kernel has or how long each is. So every aligned word that is an address of the device is taken for a
// pointer that it was given: in the bytes from each argument on, and for foreign kernels also in what the host copied to
// the device before (tables of pointers, tensor maps). A kernel may write to the whole tensor that a pointer points into.
#define _GNU_SOURCE
#include "device.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS 256             // looked at for each kernel
#define LONGEST ((size_t)4096)    // bytes looked at from each argument on: the limit for all arguments of a kernel
#define LONGEST_FOREIGN ((size_t)1024) // of a foreign kernel, which has single pointers or small structures
#define APART ((uintptr_t)1 << 18) // bytes between arguments, at most
#define POINTERS (1 << 16)        // remembered; with more of them, everything counts as written
#define COPIED ((size_t)64 << 10) // bytes of a copy that are looked at

#define STACK (1 << 15) // bytes of it that PyTorch uses between Python and a launch

// `copies` has copies from the host in place of kernels.
struct kernels {
  unsigned long count, everywhere; // how many ran; the last one that may have written anywhere
  uintptr_t pointer[POINTERS];
  unsigned long given_to[POINTERS]; // the last kernel that was given the pointer
  size_t pointers;
  unsigned slots[2 * POINTERS]; // 1 + index of a pointer, by hash
};
static struct kernels foreign, all, copies;
static struct kernels graphs;    // those that were captured; a replay runs them again
static unsigned long replays[2]; // the last replay, by its number among foreign kernels and among all
static int watches_all;          // whether PyTorch's own are recorded too
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int add(struct kernels *of, uintptr_t pointer) {
  size_t slot = (pointer >> 4) * 0x9E3779B97F4A7C15ull >> 47;
  while (of->slots[slot] && of->pointer[of->slots[slot] - 1] != pointer) slot = (slot + 1) % (2 * POINTERS);
  if (!of->slots[slot]) {
    if (of->pointers == POINTERS) return 0;
    of->pointer[of->pointers] = pointer;
    of->slots[slot] = ++of->pointers;
  }
  of->given_to[of->slots[slot] - 1] = of->count;
  return 1;
}

static void may_write_anywhere(struct kernels *of) {
  memset(of->slots, 0, sizeof of->slots);
  of->pointers = 0;
  of->everywhere = of->count;
}

static void find_pointers(struct kernels *of, const void *words, size_t bytes) {
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    uintptr_t word;
    memcpy(&word, (const char *)words + i, sizeof word);
    if (on_device((void *)word) && !add(of, word)) {
      may_write_anywhere(of);
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

// What lies behind the last argument is the stack of its callers, in which addresses of earlier calls may remain. A tensor
// is forgotten without need then.
static void record(struct kernels *of, void **arguments, const void *buffer, size_t bytes, size_t longest) {
  void *addresses[ARGUMENTS];
  char words[LONGEST];
  of->count++;
  if (buffer) find_pointers(of, buffer, bytes);
  size_t count = arguments ? readable(addresses, arguments, sizeof addresses) / sizeof *addresses : 0;
  if (!buffer && !count) may_write_anywhere(of); // its arguments are not known, or cannot be read
  for (size_t i = 0; i < count; i++) {
    if (i && !follows(addresses[i], arguments) && !follows(addresses[i], addresses[i - 1])) break;
    size_t found = readable(words, addresses[i], longest);
    if (!found) break;
    find_pointers(of, words, found);
  }
}

// `arguments`: the address of each argument, as cuLaunchKernel has them. `buffer`: all of them in one piece, or 0.
void launched_elsewhere(cudaStream_t stream, void **arguments, const void *buffer, size_t bytes) {
  pthread_mutex_lock(&lock);
  record(&foreign, arguments, buffer, bytes, LONGEST_FOREIGN);
  if (watches_all) record(&all, arguments, buffer, bytes, LONGEST_FOREIGN);
  if (capturing()) record(&graphs, arguments, buffer, bytes, LONGEST_FOREIGN);
  pthread_mutex_unlock(&lock);
  launched(stream);
}

// A collective may write to any of its tensors.
void collective_captured(void) {
  pthread_mutex_lock(&lock);
  graphs.count++;
  may_write_anywhere(&graphs);
  pthread_mutex_unlock(&lock);
}

void replayed(cudaStream_t stream) {
  pthread_mutex_lock(&lock);
  replays[0] = ++foreign.count;
  replays[1] = ++all.count;
  pthread_mutex_unlock(&lock);
  launched(stream);
}

void launched_of_torch(cudaStream_t stream, void **arguments) {
  if (watches_all || capturing()) {
    pthread_mutex_lock(&lock);
    if (watches_all) record(&all, arguments, 0, 0, LONGEST);
    if (capturing()) record(&graphs, arguments, 0, 0, LONGEST);
    pthread_mutex_unlock(&lock);
  }
  launched(stream);
}

void wrote(const void *to) {
  if (!watches_all && !capturing()) return;
  pthread_mutex_lock(&lock);
  if (watches_all) record(&all, 0, &to, sizeof to, 0);
  if (capturing()) record(&graphs, 0, &to, sizeof to, 0);
  pthread_mutex_unlock(&lock);
}

void copied_to_device(const void *from, size_t bytes) {
  if (bytes < sizeof(uintptr_t) || bytes > COPIED) return;
  pthread_mutex_lock(&lock);
  copies.count++;
  find_pointers(&copies, from, bytes);
  pthread_mutex_unlock(&lock);
}

void mock_watch_all_kernels(void) { watches_all = 1; }

// Overwrites the stack that the next call will use, so that it holds no addresses of earlier calls.
void mock_clear_stack(void) {
  volatile char below[STACK];
  for (size_t i = 0; i < sizeof below; i++) below[i] = 0;
}

unsigned long mock_kernels(int own_too) { return __atomic_load_n(own_too ? &all.count : &foreign.count, __ATOMIC_RELAXED); }

static int given_into(const struct kernels *of, uintptr_t begin, size_t bytes) {
  for (size_t i = 0; i < of->pointers; i++)
    if (of->pointer[i] - begin < bytes) return 1;
  return 0;
}

// The number of the last kernel that may have written into [from, from + bytes); 0 if none has. A replay counts as the
// kernels that were captured. What cuBLAS and cuDNN were given is not known, so it counts for all that they may write to
// (`by_libraries`: the dtype is one of theirs).
unsigned long mock_last_kernel(int own_too, const void *from, size_t bytes, int by_libraries) {
  const struct kernels *of = own_too ? &all : &foreign;
  uintptr_t begin = (uintptr_t)from;
  pthread_mutex_lock(&lock);
  unsigned long last = copies.everywhere ? of->count : of->everywhere, replay = replays[own_too];
  for (size_t i = 0; i < of->pointers; i++)
    if (of->pointer[i] - begin < bytes && of->given_to[i] > last) last = of->given_to[i];
  if (foreign.count && given_into(&copies, begin, bytes)) last = of->count;
  if (replay > last && (by_libraries || graphs.everywhere || given_into(&graphs, begin, bytes))) last = replay;
  pthread_mutex_unlock(&lock);
  return last;
}
