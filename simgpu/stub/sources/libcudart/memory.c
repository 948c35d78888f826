// Device memory: addresses are handed out and counted, nothing is stored there.
#define _GNU_SOURCE
#include "device.h"
#include "remembered.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES 16
#define SEGMENTS_FROM 0x200000000000ull // cudaMalloc: one TiB of addresses for each device
#define SEGMENTS_TO (SEGMENTS_FROM + ((size_t)DEVICES << 40))
#define RANGES_FROM 0x600000000000ull // cuMemAddressReserve, which expandable segments use
#define RANGES_TO 0x620000000000ull
#define HANDLES (1 << 20)

struct segment {
  uintptr_t address;
  size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *segments[DEVICES]; // sorted by address
static size_t count[DEVICES], capacity[DEVICES], used[DEVICES], most[DEVICES];
static int has_context = 0; // since the first call that needs the device's memory

size_t total_memory(void) { return setting("MOCK_TOTAL", ((size_t)79 << 30) + ((size_t)200 << 20)); }
static size_t context(void) { return setting("MOCK_CTX", (size_t)500 << 20); }
static size_t whole(size_t bytes) { return (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY; }

// The addresses are reserved, so that nothing of the host is mapped there, and are never accessible.
static void reserve_addresses(void) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *wanted = (void *)SEGMENTS_FROM;
  if (mmap(wanted, SEGMENTS_TO - SEGMENTS_FROM, PROT_NONE, flags, -1, 0) != wanted) {
    perror("stub libcudart: addresses for the device's memory");
    abort();
  }
}

// What each process has used at most is written to $MOCK_RECORDS/PID, whenever it grows, however the process ends.
static void record_unlocked(void) {
  static int file, owner;
  char text[DEVICES * 32], path[4096];
  const char *folder = getenv("MOCK_RECORDS");
  if (!folder) return;
  if (owner != getpid()) { // a fork has a record of its own
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    owner = getpid();
  }
  int length = 0;
  for (int d = 0; d < DEVICES; d++)
    length += snprintf(text + length, sizeof text - length, "%20zu\n", most[d] ? most[d] + context() : 0);
  if (file >= 0 && pwrite(file, text, length, 0) < 0) file = -1;
}

static int take_unlocked(int device, size_t bytes) {
  has_context = 1;
  if (used[device] + bytes + context() > total_memory()) return 0;
  used[device] += bytes;
  if (used[device] > most[device]) {
    most[device] = used[device];
    record_unlocked();
  }
  return 1;
}

// The most that the device has given to this process, its context included.
size_t mock_most_used(int device) { return (has_context ? context() : 0) + most[device]; }

int take_memory(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  int taken = take_unlocked(device, bytes);
  pthread_mutex_unlock(&lock);
  return taken;
}

void give_memory(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  used[device] -= bytes;
  pthread_mutex_unlock(&lock);
}

// What a device has given to this process, with the context that the process has there.
size_t used_memory_of(int device) {
  if (device != current_device && !most[device]) return 0;
  return (has_context ? context() : 0) + used[device];
}

size_t used_memory(void) { return used_memory_of(current_device); }

// First fit among the addresses.
static uintptr_t place(int d, size_t bytes) {
  uintptr_t address = SEGMENTS_FROM + ((uintptr_t)d << 40);
  size_t i = 0;
  while (i < count[d] && segments[d][i].address - address < bytes) {
    address = segments[d][i].address + segments[d][i].bytes;
    i++;
  }
  if (count[d] == capacity[d]) {
    capacity[d] = capacity[d] ? 2 * capacity[d] : 1024;
    segments[d] = realloc(segments[d], capacity[d] * sizeof(struct segment));
  }
  memmove(&segments[d][i + 1], &segments[d][i], (count[d] - i) * sizeof(struct segment));
  segments[d][i] = (struct segment){address, bytes};
  count[d]++;
  return address;
}

cudaError_t cudaMalloc(void **pointer, size_t requested) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  size_t bytes = whole(requested);
  pthread_once(&once, reserve_addresses);
  pthread_mutex_lock(&lock);
  int taken = take_unlocked(current_device, bytes);
  *pointer = taken ? (void *)place(current_device, bytes) : 0;
  pthread_mutex_unlock(&lock);
  if (tracing()) fprintf(stderr, "[stub] cudaMalloc %zu -> %p\n", requested, *pointer);
  return taken ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) { return cudaMalloc(pointer, bytes); }

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
  return cudaMalloc(pointer, bytes);
}

cudaError_t cudaFree(void *pointer) {
  uintptr_t address = (uintptr_t)pointer;
  if (address < SEGMENTS_FROM || address >= SEGMENTS_TO) return cudaSuccess;
  int d = (address - SEGMENTS_FROM) >> 40;
  host_waited(); // cudaFree waits for the device
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count[d]; i++)
    if (segments[d][i].address == address) {
      if (tracing()) fprintf(stderr, "[stub] cudaFree %p %zu\n", pointer, segments[d][i].bytes);
      used[d] -= segments[d][i].bytes;
      count[d]--;
      memmove(&segments[d][i], &segments[d][i + 1], (count[d] - i) * sizeof(struct segment));
      break;
    }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  has_context = 1;
  *total_bytes = total_memory();
  *free_bytes = total_memory() - used_memory();
  return cudaSuccess;
}

int on_device(const void *pointer) {
  uintptr_t a = (uintptr_t)pointer;
  return (a >= SEGMENTS_FROM && a < SEGMENTS_TO) || (a >= RANGES_FROM && a < RANGES_TO);
}

// Pinned memory of the host is ordinary memory; where it lies is noted, since operators read single values into it.
#define PINNED 4096
static struct segment pinned[PINNED];

static void note_pinned(uintptr_t address, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PINNED; i++)
    if (!pinned[i].address) {
      pinned[i] = (struct segment){address, bytes};
      break;
    }
  pthread_mutex_unlock(&lock);
}

static void forget_pinned(uintptr_t address) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PINNED; i++)
    if (pinned[i].address == address) pinned[i].address = 0;
  pthread_mutex_unlock(&lock);
}

static int is_pinned(uintptr_t address) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PINNED && !found; i++)
    found = pinned[i].address && address >= pinned[i].address && address < pinned[i].address + pinned[i].bytes;
  pthread_mutex_unlock(&lock);
  return found;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
  memset(a, 0, sizeof *a);
  a->type = on_device(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  if (remembering() && is_pinned((uintptr_t)pointer)) a->type = cudaMemoryTypeHost; // DDP insists on it
  a->devicePointer = (void *)pointer;
  a->device = current_device;
  return cudaSuccess;
}

// What operators read of the device's memory: values of at most 8 bytes, given beforehand, in their order.
static uint64_t *reads;
static size_t reads_given, reads_done;
static int reads_wait; // while the program reads a value itself

void mock_reads(const uint64_t *values, size_t given) {
  reads = realloc(reads, (given ? given : 1) * sizeof *values);
  memcpy(reads, values, given * sizeof *values);
  reads_given = given;
  reads_done = 0;
}

void mock_reads_wait(int wait) { reads_wait = wait; }
size_t mock_reads_left(void) { return reads_given - reads_done; }

// From one place of the device to another; what is large is not remembered, and so not read either.
static void copy_within(void *to, const void *from, size_t bytes) {
  char values[1 << 16];
  if (to == from) return;
  if (bytes <= sizeof values && recall(memset(values, 0, bytes), from, bytes))
    remember(to, values, bytes);
  else
    forget(to, bytes);
}

// What is read from the device is zeros, unless it is remembered, or it was said what an operator reads.
static void copy(void *to, const void *from, size_t bytes) {
  if (on_device(to)) {
    wrote(to);
    if (on_device(from))
      copy_within(to, from, bytes);
    else {
      copied_to_device(from, bytes);
      remember(to, from, bytes);
    }
    return;
  }
  if (!on_device(from)) {
    memmove(to, from, bytes);
    return;
  }
  memset(to, 0, bytes);
  recall(to, from, bytes);
  host_read(bytes);
  if (reads_done < reads_given && !reads_wait && bytes <= sizeof *reads && is_pinned((uintptr_t)to))
    memcpy(to, &reads[reads_done++], bytes);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  if (!on_device(to)) host_waited();
  copy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  captured(stream);
  copy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t i = 0; i < height; i++) copy((char *)to + i * to_pitch, (char *)from + i * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  if (on_device(to)) {
    wrote(to);
    forget(to, bytes);
  } else
    memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  captured(stream);
  return cudaMemset(to, value, bytes);
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  *pointer = (void *)SEGMENTS_FROM;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return failed(cudaErrorMemoryAllocation);
  note_pinned((uintptr_t)*pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void *pointer) {
  forget_pinned((uintptr_t)pointer);
  free(pointer);
  return cudaSuccess;
}

// The driver's functions for virtual memory, which PyTorch looks up by name: expandable segments use them.
int driver_granularity(size_t *bytes, const void *properties, int option) {
  *bytes = GRANULARITY;
  return cudaSuccess;
}

int driver_reserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long wanted,
                   unsigned long long flags) {
  static uintptr_t next = RANGES_FROM;
  pthread_mutex_lock(&lock);
  *address = next;
  next += whole(bytes);
  pthread_mutex_unlock(&lock);
  if (tracing()) fprintf(stderr, "[stub] cuMemAddressReserve %zu -> %llx\n", bytes, *address);
  return cudaSuccess;
}

static struct {
  int device;
  size_t bytes;
} handles[HANDLES];

int driver_create(unsigned long long *handle, size_t bytes, const void *properties,
                  unsigned long long flags) {
  static unsigned long long next = 1;
  pthread_mutex_lock(&lock);
  int made = next < HANDLES && take_unlocked(current_device, bytes);
  if (made) {
    handles[next].device = current_device;
    handles[next].bytes = bytes;
    *handle = next++;
  }
  pthread_mutex_unlock(&lock);
  if (tracing()) fprintf(stderr, "[stub] cuMemCreate %zu%s\n", bytes, made ? "" : " failed");
  return made ? cudaSuccess : cudaErrorMemoryAllocation;
}

int driver_release(unsigned long long handle) {
  give_memory(handles[handle].device, handles[handle].bytes);
  if (tracing()) fprintf(stderr, "[stub] cuMemRelease %zu\n", handles[handle].bytes);
  return cudaSuccess;
}

static int error_string(int error, const char **text) {
  *text = "stub error";
  return cudaSuccess;
}

static int context_state(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return cudaSuccess;
}

static int nothing(void) { return cudaSuccess; }

static const struct {
  const char *name;
  void *function;
} DRIVER[] = {
    {"cuMemGetAllocationGranularity", driver_granularity},
    {"cuMemAddressReserve", driver_reserve},
    {"cuMemCreate", driver_create},
    {"cuMemRelease", driver_release},
    {"cuGetErrorString", error_string},
    {"cuDevicePrimaryCtxGetState", context_state},
};

// Functions of the driver by name: of this table, or of the driver's stub.
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  static void *driver;
  if (result) *result = cudaDriverEntryPointSuccess;
  *function = 0;
  for (size_t i = 0; i < sizeof DRIVER / sizeof *DRIVER; i++)
    if (!strcmp(DRIVER[i].name, name)) *function = DRIVER[i].function;
  if (*function) return cudaSuccess;
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*by_name)(const char *, void **, int, uint64_t, int *) = driver ? dlsym(driver, "cuGetProcAddress_v2") : 0;
  if (!by_name || by_name(name, function, version, flags, 0)) *function = nothing;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
