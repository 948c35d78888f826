// NVML: MOCK_NDEV devices and one process, which holds what libcudart's stub has given it. The devices are idle. What
// only a card knows (temperature, power, clocks) is "not supported", as NVML itself says of some cards.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t total_memory(void), used_memory_of(int device); // libcudart/memory.c
const char *device_name(void);                         // libcudart/device.c

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 }; // nvmlReturn_t
enum { FIRST = 0x99 };                                                    // a handle is this and the device's index

static unsigned number(const char *name, unsigned otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static unsigned index_of(void *device) { return (uintptr_t)device - FIRST; }

static int the_device(unsigned index, void **device) {
  if (index >= number("MOCK_NDEV", 1)) return INVALID_ARGUMENT;
  *device = (void *)(uintptr_t)(FIRST + index);
  return 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return the_device(0, device); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return the_device(index, device); }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = number("MOCK_NDEV", 1);
  return 0;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = index_of(device);
  return 0;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { // as the stand-in for nvidia-smi names it
  snprintf(uuid, length, "GPU-00000000-0000-0000-0000-0000000000%02u", index_of(device));
  return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  unsigned capability = number("MOCK_CC", 90);
  *major = capability / 10;
  *minor = capability % 10;
  return 0;
}

struct utilization { // nvmlUtilization_t
  unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
  *rates = (struct utilization){0, 0};
  return 0;
}

int nvmlDeviceGetTemperature(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetTemperatureV(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetPowerUsage(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetPowerManagementLimit(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetEnforcedPowerLimit(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEnergyConsumption(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetClockInfo(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetMaxClockInfo(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetFanSpeed(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetPerformanceState(void) { return NOT_SUPPORTED; }

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  strncpy(name, device_name(), length);
  return 0;
}

struct memory { // nvmlMemory_t
  unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
  size_t used = used_memory_of(index_of(device));
  *memory = (struct memory){total_memory(), total_memory() - used, used};
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
  processes[0] = (struct process){getpid(), used_memory_of(index_of(device)), 0xffffffff, 0xffffffff};
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
  return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
}

struct memory_v2 { // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
  struct memory found;
  nvmlDeviceGetMemoryInfo(device, &found);
  *memory = (struct memory_v2){memory->version, found.total, 0, found.free, found.used};
  return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return 0; }

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  strncpy(version, "13.580.65.06", length);
  return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  strncpy(version, "580.65.06", length);
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return 0;
}

// The first versions of these functions, which programs that know no other version call.
int nvmlInit(void) { return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
int nvmlDeviceGetHandleByPciBusId(const char *id, void **device) { return the_device(0, device); }
