#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define __CUDART_API_VERSION 13000
#include <cuda_runtime_api.h>
#undef cudaGetDeviceProperties
static size_t envz(const char *n, size_t d) {
  const char *s = getenv(n);
  return s ? strtoull(s, 0, 0) : d;
}
static __thread int curdev = 0;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
struct rec {
  uintptr_t p;
  size_t n;
};
static struct rec *recs[16];
static size_t nrec[16], caprec[16];
static size_t used[16];
static uintptr_t nextva = 0;
size_t mock_total(void) {
  return envz("MOCK_TOTAL", (size_t)79 * 1024 * 1024 * 1024 + (size_t)200 * 1024 * 1024);
}
size_t mock_used(void);
size_t mock_ctx(void) { return envz("MOCK_CTX", (size_t)500 * 1024 * 1024); }
static cudaError_t lasterr = cudaSuccess;
static cudaError_t seterr(cudaError_t e) {
  if (e) lasterr = e;
  return e;
}
static uintptr_t rup(uintptr_t x, uintptr_t a) { return (x + a - 1) / a * a; }
// simple first-fit VA allocator over sorted recs; each alloc aligned to 2MiB if >=1MiB else 512
static cudaError_t do_malloc(void **p, size_t n) {
  pthread_mutex_lock(&mu);
  int d = curdev;
  size_t gran = 2097152;
  size_t need = rup(n, gran);
  if (used[d] + need + mock_ctx() > mock_total()) {
    pthread_mutex_unlock(&mu);
    *p = 0;
    if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cudaMalloc %zu OOM\n", n);
    return seterr(cudaErrorMemoryAllocation);
  }
  if (!nextva) {
    void *b = mmap((void *)0x200000000000ull, (size_t)1 << 44, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (b == MAP_FAILED) {
      {
        fprintf(stderr, "mmap fail\n");
        abort();
      };
    } else
      nextva = (uintptr_t)b;
    nextva = rup(nextva, gran);
  }
  static uintptr_t base = 0;
  if (!base) base = nextva;
  // first fit
  uintptr_t dev_base = base + ((uintptr_t)d << 40);
  uintptr_t cur = dev_base;
  size_t i;
  for (i = 0; i < nrec[d]; i++) {
    if (recs[d][i].p - cur >= need) break;
    cur = recs[d][i].p + recs[d][i].n;
  }
  if (nrec[d] == caprec[d]) {
    caprec[d] = caprec[d] ? caprec[d] * 2 : 1024;
    recs[d] = realloc(recs[d], caprec[d] * sizeof(struct rec));
  }
  memmove(&recs[d][i + 1], &recs[d][i], (nrec[d] - i) * sizeof(struct rec));
  recs[d][i].p = cur;
  recs[d][i].n = need;
  nrec[d]++;
  used[d] += need;
  *p = (void *)cur;
  if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cudaMalloc %zu -> %p\n", n, *p);
  pthread_mutex_unlock(&mu);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) { return do_malloc(p, n); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return do_malloc(p, n); }
cudaError_t cudaFree(void *p) {
  if (!p) return 0;
  pthread_mutex_lock(&mu);
  for (int d = 0; d < 16; d++)
    for (size_t i = 0; i < nrec[d]; i++)
      if (recs[d][i].p == (uintptr_t)p) {
        used[d] -= recs[d][i].n;
        if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cudaFree %p %zu\n", p, recs[d][i].n);
        memmove(&recs[d][i], &recs[d][i + 1], (nrec[d] - i - 1) * sizeof(struct rec));
        nrec[d]--;
        pthread_mutex_unlock(&mu);
        return 0;
      }
  pthread_mutex_unlock(&mu);
  return 0;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
// what this process holds of the current device: its context and its memory
size_t mock_used(void) { return mock_ctx() + used[curdev]; }
void mock_phys(int d, long delta) {
  pthread_mutex_lock(&mu);
  used[d] += delta;
  pthread_mutex_unlock(&mu);
}
int mock_phys_ok(int d, size_t n) { return used[d] + n + mock_ctx() <= mock_total(); }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) {
  *t = mock_total();
  *f = mock_total() - mock_ctx() - used[curdev];
  return 0;
}
cudaError_t cudaGetDeviceCount(int *n) {
  *n = (int)envz("MOCK_NDEV", 1);
  return 0;
}
cudaError_t cudaGetDevice(int *d) {
  *d = curdev;
  return 0;
}
cudaError_t cudaSetDevice(int d) {
  curdev = d;
  return 0;
}
static int A_major() { return (int)envz("MOCK_CC", 90) / 10; }
static int A_minor() { return (int)envz("MOCK_CC", 90) % 10; }
static int A_sm() { return (int)envz("MOCK_SM", 132); }
static int A_thr() { return (int)envz("MOCK_THR", 2048); }
static size_t A_smem_optin() { return envz("MOCK_SMEM_OPTIN", 232448); }
static size_t A_smem_sm() { return envz("MOCK_SMEM_SM", 233472); }
static size_t A_l2() { return envz("MOCK_L2", 52428800); }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int dev) {
  memset(p, 0, sizeof *p);
  const char *nm = getenv("MOCK_NAME");
  strcpy(p->name, nm ? nm : "NVIDIA H100 80GB HBM3");
  p->totalGlobalMem = mock_total();
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = 1024;
  p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = 65535;
  p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = A_major();
  p->minor = A_minor();
  p->textureAlignment = 512;
  p->multiProcessorCount = A_sm();
  p->concurrentKernels = 1;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = A_l2();
  p->maxThreadsPerMultiProcessor = A_thr();
  p->sharedMemPerMultiprocessor = A_smem_sm();
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->maxBlocksPerMultiProcessor = 32;
  p->sharedMemPerBlockOptin = A_smem_optin();
  p->cooperativeLaunch = 1;
  p->pciBusID = 1;
  p->reservedSharedMemPerBlock = 1024;
  p->asyncEngineCount = 3;
  p->memoryPoolsSupported = 1;
  for (int i = 0; i < 16; i++) p->uuid.bytes[i] = i + dev;
  return 0;
}
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int dev) {
  return cudaGetDeviceProperties(p, dev);
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int dev) {
  struct cudaDeviceProp p;
  cudaGetDeviceProperties(&p, dev);
  switch (a) {
  case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
  case cudaDevAttrWarpSize: *v = 32; break;
  case cudaDevAttrMultiProcessorCount: *v = A_sm(); break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *v = A_thr(); break;
  case cudaDevAttrComputeCapabilityMajor: *v = A_major(); break;
  case cudaDevAttrComputeCapabilityMinor: *v = A_minor(); break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = A_smem_optin(); break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = A_smem_sm(); break;
  case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
  case cudaDevAttrMaxGridDimY: *v = 65535; break;
  case cudaDevAttrMaxGridDimZ: *v = 65535; break;
  case cudaDevAttrMaxBlockDimX: *v = 1024; break;
  case cudaDevAttrMaxBlockDimY: *v = 1024; break;
  case cudaDevAttrMaxBlockDimZ: *v = 64; break;
  case cudaDevAttrL2CacheSize: *v = A_l2(); break;
  case cudaDevAttrCooperativeLaunch: *v = 1; break;
  case cudaDevAttrMaxRegistersPerBlock: *v = 65536; break;
  case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
  case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
  case cudaDevAttrReservedSharedMemoryPerBlock: *v = 1024; break;
  case cudaDevAttrMemoryPoolsSupported: *v = 1; break;
  case cudaDevAttrUnifiedAddressing: *v = 1; break;
  default: *v = 0;
  }
  return 0;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->numRegs = (int)envz("MOCK_REGS", 32);
  a->maxThreadsPerBlock = 1024;
  a->ptxVersion = envz("MOCK_CC", 90);
  a->binaryVersion = envz("MOCK_CC", 90);
  a->maxDynamicSharedSizeBytes = 49152;
  return 0;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int bs, size_t sm) {
  int t = A_thr() / (bs ? bs : 1);
  if (t > 32) t = 32;
  *n = t < 1 ? 1 : t;
  return 0;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int bs, size_t sm,
                                                                   unsigned fl) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, bs, sm);
}
cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = envz("MOCK_CUDART", 13000);
  return 0;
}
cudaError_t cudaDriverGetVersion(int *v) {
  *v = envz("MOCK_CUDART", 13000);
  return 0;
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = lasterr;
  lasterr = 0;
  return e;
}
cudaError_t cudaPeekAtLastError(void) { return lasterr; }
const char *cudaGetErrorString(cudaError_t e) {
  return e == 2 ? "out of memory" : e == 0 ? "no error" : "mock error";
}
const char *cudaGetErrorName(cudaError_t e) {
  return e == 2 ? "cudaErrorMemoryAllocation" : e == 0 ? "cudaSuccess" : "cudaErrorMock";
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  uintptr_t x = (uintptr_t)p;
  a->type =
      (x >= 0x200000000000ull && x < 0x300000000000ull) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->devicePointer = (void *)p;
  a->device = curdev;
  return 0;
}
static int isdev(const void *p) {
  uintptr_t x = (uintptr_t)p;
  return (x >= 0x200000000000ull && x < 0x300000000000ull) ||
         (x >= 0x600000000000ull && x < 0x620000000000ull);
}
static void cpy(void *d, const void *s, size_t n, int k) {
  if (isdev(d)) return;
  if (isdev(s))
    memset(d, 0, n);
  else
    memmove(d, s, n);
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) {
  cpy(d, s, n, k);
  return 0;
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  cpy(d, s, n, k);
  return 0;
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h,
                              enum cudaMemcpyKind k, cudaStream_t st) {
  for (size_t i = 0; i < h; i++) cpy((char *)d + i * dp, (char *)s + i * sp, w, k);
  return 0;
}
cudaError_t cudaMemset(void *p, int v, size_t n) {
  if (!isdev(p)) memset(p, v, n);
  return 0;
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
  if (!isdev(p)) memset(p, v, n);
  return 0;
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) {
  return posix_memalign(p, 4096, n ? n : 1) ? 2 : 0;
}
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void *p) {
  free(p);
  return 0;
}
static uintptr_t hnd = 0x1000;
static void *nh() { return (void *)(hnd += 16); }
cudaError_t cudaStreamCreate(cudaStream_t *s) {
  *s = nh();
  return 0;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) {
  *s = nh();
  return 0;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) {
  *s = nh();
  return 0;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) {
  *p = 0;
  return 0;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *a, int *b) {
  *a = 0;
  *b = -5;
  return 0;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
  *e = nh();
  return 0;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) {
  *e = nh();
  return 0;
}
cudaError_t cudaEventElapsedTime(float *f, cudaEvent_t a, cudaEvent_t b) {
  *f = 1;
  return 0;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  *c = 0;
  return 0;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c, unsigned long long *id,
                                     cudaGraph_t *g, const cudaGraphNode_t **dd, const cudaGraphEdgeData **e,
                                     size_t *nd) {
  if (c) *c = 0;
  if (id) *id = 0;
  return 0;
}
cudaError_t cudaDeviceCanAccessPeer(int *c, int a, int b) {
  *c = 0;
  return 0;
}
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d) {
  snprintf(s, n, "0000:%02x:00.0", d + 1);
  return 0;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *s) {
  *p = (void *)0x200000000000ull;
  return 0;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t s, cudaStream_t st) { return 0; }
cudaError_t __cudaLaunchKernel(void *f, dim3 g, dim3 b, void **a, size_t s, cudaStream_t st) { return 0; }
cudaError_t __cudaGetKernel(void **k, const void *f) {
  *k = (void *)f;
  return 0;
}
char __cudaInitModule(void **h) { return 1; }
void **__cudaRegisterFatBinary(void *x) { return (void **)malloc(16); }
void __cudaRegisterFatBinaryEnd(void **x) {}
void __cudaUnregisterFatBinary(void **x) {}
void __cudaRegisterFunction(void **a, const char *b, char *c, const char *d, int e, void *f, void *g, void *h,
                            void *i, int *j) {}
void __cudaRegisterVar(void **a, char *b, char *c, const char *d, int e, size_t f, int g, int h) {}
static __thread struct {
  dim3 g, b;
  size_t s;
  void *st;
} cfg[16];
static __thread int ncfg = 0;
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, void *st) {
  cfg[ncfg].g = g;
  cfg[ncfg].b = b;
  cfg[ncfg].s = s;
  cfg[ncfg].st = st;
  ncfg++;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *s, void *st) {
  ncfg--;
  *g = cfg[ncfg].g;
  *b = cfg[ncfg].b;
  *s = cfg[ncfg].s;
  *(void **)st = cfg[ncfg].st;
  return 0;
}
// ---- driver api stubs
static int cu_zero() { return 0; }
static int cuMemGetAllocationGranularity_(size_t *g, const void *p, int o) {
  *g = 2097152;
  return 0;
}
static uintptr_t vabase = 0x600000000000ull;
static int cuMemAddressReserve_(unsigned long long *p, size_t n, size_t a, unsigned long long addr,
                                unsigned long long f) {
  pthread_mutex_lock(&mu);
  *p = vabase;
  vabase += rup(n, 2097152);
  pthread_mutex_unlock(&mu);
  if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cuMemAddressReserve %zu -> %llx\n", n, *p);
  return 0;
}
static size_t hsz[1 << 20];
static int nhs = 1;
static int cuMemCreate_(unsigned long long *h, size_t n, const void *prop, unsigned long long f) {
  if (!mock_phys_ok(curdev, n)) return 2;
  mock_phys(curdev, (long)n);
  *h = nhs;
  hsz[nhs++] = n;
  if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cuMemCreate %zu\n", n);
  return 0;
}
static int cuMemRelease_(unsigned long long h) {
  mock_phys(curdev, -(long)hsz[h]);
  if (getenv("MOCK_TRACE")) fprintf(stderr, "[mock] cuMemRelease %zu\n", hsz[h]);
  return 0;
}
static int cuGetErrorString_(int e, const char **s) {
  *s = "mock";
  return 0;
}
static int cuDeviceGetAttribute_(int *v, int a, int d) {
  *v = 0;
  return 0;
}
static int cuDevicePrimaryCtxGetState_(int d, unsigned *f, int *a) {
  if (f) *f = 0;
  if (a) *a = 1;
  return 0;
}
struct {
  const char *n;
  void *f;
} drv[] = {{"cuMemGetAllocationGranularity", cuMemGetAllocationGranularity_},
           {"cuMemAddressReserve", cuMemAddressReserve_},
           {"cuMemCreate", cuMemCreate_},
           {"cuMemRelease", cuMemRelease_},
           {"cuGetErrorString", cuGetErrorString_},
           {"cuDeviceGetAttribute", cuDeviceGetAttribute_},
           {"cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState_},
           {0, 0}};
cudaError_t cudaGetDriverEntryPointByVersion(const char *s, void **f, unsigned v, unsigned long long fl,
                                             enum cudaDriverEntryPointQueryResult *r) {
  if (r) *r = 0;
  for (int i = 0; drv[i].n; i++)
    if (!strcmp(drv[i].n, s)) {
      *f = drv[i].f;
      return 0;
    }
  *f = cu_zero;
  return 0;
}
cudaError_t cudaGetDriverEntryPoint(const char *s, void **f, unsigned long long fl,
                                    enum cudaDriverEntryPointQueryResult *r) {
  return cudaGetDriverEntryPointByVersion(s, f, 0, fl, r);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { return 0; }
