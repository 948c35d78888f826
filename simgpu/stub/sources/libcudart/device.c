// The device itself: the GPU that the MOCK_* variables describe, its properties, and errors.
#include "device.h"
#include <stdio.h>
#include <string.h>

__thread int current_device = 0;
static cudaError_t last_error = cudaSuccess;

size_t setting(const char *name, size_t otherwise) {
  const char *value = getenv(name);
  return value ? strtoull(value, 0, 0) : otherwise;
}

int tracing(void) { return getenv("MOCK_TRACE") != 0; }

cudaError_t failed(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

static int compute_capability(void) { return setting("MOCK_CC", 90); }
static int threads_per_sm(void) { return setting("MOCK_THR", 2048); }

const char *device_name(void) {
  const char *name = getenv("MOCK_NAME");
  return name ? name : "NVIDIA H100 80GB HBM3";
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", device_name());
  p->totalGlobalMem = total_memory();
  p->major = compute_capability() / 10;
  p->minor = compute_capability() % 10;
  p->multiProcessorCount = setting("MOCK_SM", 132);
  p->maxThreadsPerMultiProcessor = threads_per_sm();
  p->sharedMemPerBlockOptin = setting("MOCK_SMEM_OPTIN", 232448);
  p->sharedMemPerMultiprocessor = setting("MOCK_SMEM_SM", 233472);
  p->l2CacheSize = setting("MOCK_L2", 50 << 20);
  // the same on every GPU from compute capability 7.0 on
  p->sharedMemPerBlock = 49152;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->textureAlignment = 512;
  p->memoryBusWidth = 5120;
  p->asyncEngineCount = 3;
  p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
  p->cooperativeLaunch = p->memoryPoolsSupported = 1;
  p->pciBusID = device + 1;
  for (int i = 0; i < 16; i++) p->uuid.bytes[i] = i + device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) {
  return cudaGetDeviceProperties(p, device);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp p;
  cudaGetDeviceProperties(&p, device);
  switch (attribute) {
  case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
  case cudaDevAttrWarpSize: *value = p.warpSize; break;
  case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
  case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
  case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
  case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
  case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
  case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
  case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
  case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
  case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
  case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
  case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
  case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
  case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
  case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
  case cudaDevAttrReservedSharedMemoryPerBlock: *value = p.reservedSharedMemPerBlock; break;
  case cudaDevAttrMemoryPoolsSupported: *value = p.memoryPoolsSupported; break;
  case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
  case cudaDevAttrMemoryClockRate: // kHz, so that twice this times the width is the bandwidth
    *value = setting("MOCK_BANDWIDTH", 0) / 1000 * 8 / 2 / p.memoryBusWidth;
    break;
  case cudaDevAttrClockRate: *value = 1500000; break;
  case cudaDevAttrComputePreemptionSupported: case cudaDevAttrConcurrentKernels: *value = 1; break;
  case 120: case 127: *value = p.major >= 9; break; // clusters; tensor maps
  case cudaDevAttrUnifiedAddressing: *value = p.unifiedAddressing; break;
  default: *value = 0;
  }
  return cudaSuccess;
}

// CUB asks these two to size a launch, and from that its temporary storage.
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
  memset(a, 0, sizeof *a);
  a->numRegs = setting("MOCK_REGS", 32);
  a->maxThreadsPerBlock = 1024;
  a->ptxVersion = a->binaryVersion = setting("MOCK_PTX", compute_capability()); // whose kernels this build has
  a->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                          size_t shared_memory) {
  int fit = threads_per_sm() / (block_size ? block_size : 1);
  *blocks = fit < 1 ? 1 : fit > 32 ? 32 : fit;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int block_size, size_t shared_memory,
                                                                   unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_memory);
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = setting("MOCK_NDEV", 1);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
  snprintf(id, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = setting("MOCK_CUDART", 1000 * CUDA_MAJOR);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  default: return "stub error";
  }
}

const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : error                            ? "cudaErrorStub"
                                            : "cudaSuccess";
}
