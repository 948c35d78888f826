// The driver, as PyTorch, Triton, Inductor and bitsandbytes call it: the runtime's stub answers for both.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Of the runtime's stub (libcudart)
int cudaGetDeviceCount(int *);
int cudaGetDevice(int *);
int cudaSetDevice(int);
int cudaDeviceGetAttribute(int *, int, int);
int cudaDeviceGetPCIBusId(char *, int, int);
int cudaDriverGetVersion(int *);
int cudaDeviceSynchronize(void);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaStreamCreate(void **);
int cudaStreamSynchronize(void *);
int cudaStreamQuery(void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaStreamIsCapturing(void *, int *);
int cudaEventCreate(void **);
int cudaEventRecord(void *, void *);
int cudaEventQuery(void *);
int cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *);
void launched_elsewhere(void *stream, void **arguments, const void *buffer, size_t bytes);
const char *device_name(void);
size_t total_memory(void), setting(const char *name, size_t otherwise);
int on_device(const void *pointer);
int driver_granularity(size_t *, const void *, int);
int driver_reserve(unsigned long long *, size_t, size_t, unsigned long long, unsigned long long);
int driver_create(unsigned long long *, size_t, const void *, unsigned long long);
int driver_release(unsigned long long);

enum { SUCCESS = 0, INVALID_VALUE = 1 }; // CUresult
enum { TO_DEVICE = 1, TO_HOST = 2, WITHIN = 3 };

int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}

int cuDeviceGetCount(int *count) { return cudaGetDeviceCount(count); }

int cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, length, "%s", device_name());
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device); // the numbers are the runtime's
}

int cuDeviceComputeCapability(int *major, int *minor, int device) {
  cudaDeviceGetAttribute(major, 75, device);
  return cudaDeviceGetAttribute(minor, 76, device);
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = total_memory();
  return SUCCESS;
}

int cuDeviceGetUuid(char *uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = i + device; // as in cudaGetDeviceProperties
  return SUCCESS;
}

int cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceGetPCIBusId(char *id, int length, int device) { return cudaDeviceGetPCIBusId(id, length, device); }

// Contexts: one for each device, which is its number.
#define CONTEXTS 0x7700

int cuCtxGetDevice(int *device) { return cudaGetDevice(device); }

int cuCtxGetCurrent(void **context) {
  int device;
  cudaGetDevice(&device);
  *context = (void *)(uintptr_t)(CONTEXTS + device);
  return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
  return context ? cudaSetDevice((uintptr_t)context - CONTEXTS) : SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : SUCCESS; }
int cuStreamGetCtx(void *stream, void **context) { return cuCtxGetCurrent(context); }
int cuCtxSynchronize(void) { return cudaDeviceSynchronize(); }

int cuCtxGetLimit(size_t *value, int limit) {
  *value = 1 << 20;
  return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(uintptr_t)(CONTEXTS + device);
  return SUCCESS;
}

// Modules and kernels: each has a handle of its own, and none has code.
static void *handle(void) {
  static uintptr_t next = 0x5000;
  return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}

static int made(void **what) {
  *what = handle();
  return SUCCESS;
}

int cuModuleLoad(void **module, const char *file) { return made(module); }
int cuModuleLoadData(void **module, const void *image) { return made(module); }
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values) {
  return made(module);
}
int cuModuleLoadFatBinary(void **module, const void *image) { return made(module); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return made(function); }

int cuModuleGetGlobal_v2(unsigned long long *address, size_t *bytes, void *module, const char *name) {
  if (address) *address = 0x200000000000ull;
  if (bytes) *bytes = 8;
  return SUCCESS;
}

int cuLibraryLoadData(void **library, const void *code, int *options, void **values, unsigned n, int *more,
                      void **others, unsigned m) {
  return made(library);
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) { return made(kernel); }
int cuLibraryGetModule(void **module, void *library) { return made(module); }

int cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
  switch (attribute) { // CUfunction_attribute
  case 0: *value = 1024; break;                                                   // threads of a block
  case 4: *value = setting("MOCK_REGS", 32); break;                               // registers
  case 5: case 6: *value = setting("MOCK_PTX", setting("MOCK_CC", 90)); break;    // versions of PTX and of code
  case 8: *value = 49152; break;                                                  // shared memory
  default: *value = 0;
  }
  return SUCCESS;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return cuFuncGetAttribute(value, attribute, kernel);
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
  *clusters = setting("MOCK_SM", 132);
  return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  int fit = (int)setting("MOCK_THR", 2048) / (threads ? threads : 1);
  *blocks = fit < 1 ? 1 : fit > 32 ? 32 : fit;
  return SUCCESS;
}

int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, void *shared_of, size_t shared, int limit) {
  *block = 1024;
  *grid = 2 * setting("MOCK_SM", 132);
  return SUCCESS;
}

// `extra`, where there is no list of arguments: key 1 and their buffer, key 2 and the address of its bytes, 0.
static int launch(void *stream, void **arguments, void **extra) {
  const void *buffer = 0;
  size_t bytes = 0;
  for (; extra && *extra; extra += 2) {
    if (*extra == (void *)1) buffer = extra[1];
    if (*extra == (void *)2) bytes = *(size_t *)extra[1];
  }
  launched_elsewhere(stream, arguments, buffer, bytes);
  return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  return launch(stream, arguments, extra);
}

int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **arguments) {
  return launch(stream, arguments, 0);
}

struct launch { // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void *stream;
};

int cuLaunchKernelEx(const struct launch *config, void *function, void **arguments, void **extra) {
  return launch(config->stream, arguments, extra);
}

int cuLinkCreate_v2(unsigned n, int *options, void **values, void **state) { return made(state); }

int cuLinkComplete(void *state, void **image, size_t *bytes) {
  static char nothing[16];
  *image = nothing;
  if (bytes) *bytes = sizeof nothing;
  return SUCCESS;
}

#define TENSOR_MAP 128 // bytes of a CUtensorMap

// A map begins with the address of the tensor, so that it is seen which memory a kernel was given.
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address) {
  memset(map, 0, TENSOR_MAP);
  memcpy(map, &address, sizeof address);
  return SUCCESS;
}

int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *address) {
  return cuTensorMapEncodeTiled(map, type, rank, address);
}

int cuTensorMapEncodeIm2colWide(void *map, int type, unsigned rank, void *address) {
  return cuTensorMapEncodeTiled(map, type, rank, address);
}

// Memory
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return cudaMemGetInfo(free_bytes, total); }
int cuMemAlloc_v2(void **address, size_t bytes) { return cudaMalloc(address, bytes); }
int cuMemAllocAsync(void **address, size_t bytes, void *stream) { return cudaMalloc(address, bytes); }
int cuMemAllocManaged(void **address, size_t bytes, unsigned flags) { return cudaMalloc(address, bytes); }
int cuMemFree_v2(void *address) { return cudaFree(address); }
int cuMemFreeAsync(void *address, void *stream) { return cudaFree(address); }
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) { return cudaHostAlloc(pointer, bytes, flags); }
int cuMemAllocHost_v2(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
int cuMemFreeHost(void *pointer) { return cudaFreeHost(pointer); }

int cuMemHostGetDevicePointer_v2(void **address, void *pointer, unsigned flags) {
  *address = pointer;
  return SUCCESS;
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) { return cudaMemcpy(to, from, bytes, TO_DEVICE); }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes) { return cudaMemcpy(to, from, bytes, TO_HOST); }
int cuMemcpyDtoD_v2(void *to, const void *from, size_t bytes) { return cudaMemcpy(to, from, bytes, WITHIN); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return cudaMemcpyAsync(to, from, bytes, TO_DEVICE, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return cudaMemcpyAsync(to, from, bytes, TO_HOST, stream);
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return cudaMemcpyAsync(to, from, bytes, WITHIN, stream);
}
int cuMemsetD8_v2(void *to, unsigned char value, size_t count) { return cudaMemset(to, value, count); }
int cuMemsetD32_v2(void *to, unsigned value, size_t count) { return cudaMemset(to, value, 4 * count); }
int cuMemsetD8Async(void *to, unsigned char value, size_t count, void *stream) {
  return cudaMemsetAsync(to, value, count, stream);
}
int cuMemsetD32Async(void *to, unsigned value, size_t count, void *stream) {
  return cudaMemsetAsync(to, value, 4 * count, stream);
}

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
  return driver_granularity(bytes, properties, option);
}
int cuMemAddressReserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long wanted,
                        unsigned long long flags) {
  return driver_reserve(address, bytes, alignment, wanted, flags);
}
int cuMemCreate(unsigned long long *made, size_t bytes, const void *properties, unsigned long long flags) {
  return driver_create(made, bytes, properties, flags) ? 2 : SUCCESS; // CUDA_ERROR_OUT_OF_MEMORY
}
int cuMemRelease(unsigned long long made) { return driver_release(made); }

// What a pointer is. The host's are unknown to the driver, as on a GPU: Triton says then that a tensor is on the CPU.
int cuPointerGetAttribute(void *value, int attribute, void *pointer) {
  if (!on_device(pointer)) return INVALID_VALUE;
  switch (attribute) { // CUpointer_attribute
  case 1: return cuCtxGetCurrent(value);
  case 2: *(unsigned *)value = 2; break; // of a device
  case 3: *(void **)value = pointer; break;
  case 9: return cudaGetDevice(value);
  default: memset(value, 0, 4);
  }
  return SUCCESS;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **values, void *pointer) {
  for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(values[i], attributes[i], pointer);
  return SUCCESS;
}

// Streams and events
int cuStreamCreate(void **stream, unsigned flags) { return cudaStreamCreate(stream); }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { return cudaStreamCreate(stream); }
int cuStreamSynchronize(void *stream) { return cudaStreamSynchronize(stream); }
int cuStreamQuery(void *stream) { return cudaStreamQuery(stream); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return cudaStreamWaitEvent(stream, event, flags); }
int cuStreamIsCapturing(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }
int cuEventCreate(void **event, unsigned flags) { return cudaEventCreate(event); }
int cuEventRecord(void *event, void *stream) { return cudaEventRecord(event, stream); }
int cuEventQuery(void *event) { return cudaEventQuery(event); }
int cuEventSynchronize(void *event) { return cudaEventSynchronize(event); }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  return cudaEventElapsedTime(milliseconds, from, to);
}

int cuGetErrorString(int error, const char **text) {
  *text = error == INVALID_VALUE ? "invalid argument" : error == 2 ? "out of memory" : error ? "stub error" : "no error";
  return SUCCESS;
}

int cuGetErrorName(int error, const char **text) {
  *text = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : error == 2           ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error                ? "CUDA_ERROR_UNKNOWN"
                                 : "CUDA_SUCCESS";
  return SUCCESS;
}

// Functions by name: the newest form of each.
static int nothing(void) { return SUCCESS; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  static void *here;
  char newer[128];
  if (!here) here = dlopen("libcuda.so.1", RTLD_NOW);
  snprintf(newer, sizeof newer, "%s_v2", name);
  *function = here ? dlsym(here, newer) : 0;
  if (!*function && here) *function = dlsym(here, name);
  if (!*function) *function = nothing;
  if (status) *status = 0;
  return SUCCESS;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
