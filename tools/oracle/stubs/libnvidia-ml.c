#include <stddef.h>
#include <string.h>
#include <unistd.h>
size_t mock_used(void); // libcudart.c
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *p, void **d) {
  *d = (void *)0x99;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned *c) {
  *c = 1;
  return 0;
}
struct pi {
  unsigned pid;
  unsigned pad;
  unsigned long long mem;
  unsigned a, b;
};
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, struct pi *p) {
  if (*n < 1) {
    *n = 1;
    return 7;
  }
  p[0].pid = getpid();
  p[0].mem = mock_used();
  p[0].a = 0xffffffff;
  p[0].b = 0xffffffff;
  *n = 1;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType() { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct pi *p) {
  return nvmlDeviceGetComputeRunningProcesses(d, n, p);
}
int nvmlSystemGetDriverVersion(char *s, unsigned n) {
  strncpy(s, "580.65.06", n);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
  *d = (void *)0x99;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *v) {
  *v = 13000;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *d, void *x) { return 0; }
