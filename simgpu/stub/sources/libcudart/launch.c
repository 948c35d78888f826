// Kernels, streams and events: a launch does nothing, all work is done at once. What is captured: graphs.c.
#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <string.h>
#include <time.h>

// NCCL's watchdog of PyTorch releases the tensors of collectives that have ended, in a thread of its own. What it does
// must not depend on which thread is quicker. So before the next collective, and before the next kernel, the host waits
// until the watchdog has looked at all of them: two of its rounds have begun since (preloaded.c).
#define PATIENCE 2000 // half milliseconds; a thread that the watchdog waits for may be this one

static int issued; // a collective since the watchdog's last complete round

void collective_issued(void) {
  bind_storage();
  __atomic_store_n(&issued, 1, __ATOMIC_RELAXED);
  if (capturing()) collective_captured();
}

void bind_storage(void) {
  static unsigned long (*rounds)(void);
  static int looked;
  if (!__atomic_exchange_n(&issued, 0, __ATOMIC_RELAXED)) return;
  if (!looked) rounds = dlsym(RTLD_DEFAULT, "simgpu_watchdog_rounds");
  looked = 1;
  if (!rounds) return;
  unsigned long from = rounds();
  for (int i = 0; i < PATIENCE && rounds() < from + 2; i++) {
    struct timespec pause = {0, 500000};
    nanosleep(&pause, 0);
  }
}

// A kernel is given to a stream.
void launched(cudaStream_t stream) {
  if (__atomic_load_n(&issued, __ATOMIC_RELAXED)) bind_storage();
  captured(stream);
}

#define FUNCTIONS (1 << 12)

// Whether a kernel is of a library of PyTorch; those of extensions (written.c) are in none.
static int of_torch(const void *function) {
  static const void *known[FUNCTIONS]; // those that are, because looking one up is slow
  size_t at = ((uintptr_t)function >> 4) % FUNCTIONS;
  Dl_info info;
  if (known[at] == function) return 1;
  if (!dladdr(function, &info) || !info.dli_fname || !strstr(info.dli_fname, "libtorch")) return 0;
  known[at] = function;
  return 1;
}

static cudaError_t launched_function(const void *function, cudaStream_t stream, void **arguments) {
  if (of_torch(function))
    launched_of_torch(stream, arguments);
  else
    launched_elsewhere(stream, arguments, 0, 0);
  return cudaSuccess;
}

static void *handle(void) {
  static uintptr_t next = 0x1000;
  return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  *stream = handle();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = handle();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = 1;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
  return launched_function(function, stream, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
  return launched_function(function, stream, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return launched_function(function, config->stream, arguments);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  replayed(stream);
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  return launched_function(kernel, stream, arguments);
}

cudaError_t __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return cudaSuccess;
}

// What nvcc puts into each object file, to register its kernels.
char __cudaInitModule(void **handle) { return 1; }
void **__cudaRegisterFatBinary(void *binary) { return malloc(16); }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit,
                            void *thread, void *block, void *block_dim, void *grid_dim, int *warp) {}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes,
                       int constant, int global) {}

// What nvcc makes of kernel<<<grid, block, shared, stream>>>.
#define NESTED 16
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} launches[NESTED];
static __thread int depth = 0;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (depth == NESTED) abort();
  launches[depth].grid = grid;
  launches[depth].block = block;
  launches[depth].shared = shared;
  launches[depth].stream = stream;
  depth++;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  depth--;
  *grid = launches[depth].grid;
  *block = launches[depth].block;
  *shared = launches[depth].shared;
  *(void **)stream = launches[depth].stream;
  return cudaSuccess;
}
