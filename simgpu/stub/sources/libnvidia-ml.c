// NVML: one device and one process, which holds what libcudart's stub has given it.
#include <stddef.h>
#include <string.h>
#include <unistd.h>

size_t total_memory(void), used_memory(void); // libcudart/memory.c
const char *device_name(void);                // libcudart/device.c

enum { INSUFFICIENT_SIZE = 7, NOT_SUPPORTED = 3 }; // nvmlReturn_t

static int the_device(void **device) {
  *device = (void *)0x99;
  return 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return the_device(device); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return the_device(device); }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 1;
  return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  strncpy(name, device_name(), length);
  return 0;
}

struct memory { // nvmlMemory_t
  unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
  *memory = (struct memory){total_memory(), total_memory() - used_memory(), used_memory()};
  return 0;
}

struct process { // nvmlProcessInfo_t
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process *processes) {
  unsigned room = *count;
  *count = 1;
  if (room < 1) return INSUFFICIENT_SIZE;
  processes[0] = (struct process){getpid(), used_memory(), 0xffffffff, 0xffffffff};
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
  return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return 0; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  strncpy(version, "580.65.06", length);
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return 0;
}
