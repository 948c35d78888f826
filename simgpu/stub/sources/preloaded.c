// What is preloaded: the clock of NCCL's watchdog, and a look at the blocks that PyTorch's allocator hands out.

// What NCCL's watchdog of PyTorch sees of time. It looks every 100 ms at which collectives have ended, and only then
// are their tensors released. A step takes longer than that on a GPU, and less here. So its thread waits 0.5 ms, and
// reads each clock 200 ms later, once after each wait. The stub of NCCL waits for two of its rounds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long rounds;
static __thread int is_watchdog = -1, later[2]; // by clock: CLOCK_REALTIME, CLOCK_MONOTONIC

unsigned long simgpu_watchdog_rounds(void) { return rounds; }

static int watchdog(void) {
  char name[32] = "";
  if (is_watchdog == 1) return 1;
  pthread_getname_np(pthread_self(), name, sizeof name); // the thread names itself after it has begun
  if (!strncmp(name, "pt_nccl_watchd", 14)) is_watchdog = 1;
  return is_watchdog == 1;
}

static int wait_shortly(pthread_cond_t *condition, pthread_mutex_t *mutex) {
  struct timespec pause = {0, 500000};
  pthread_mutex_unlock(mutex);
  nanosleep(&pause, 0);
  pthread_mutex_lock(mutex);
  later[0] = later[1] = 1;
  __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
  return ETIMEDOUT;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  if (watchdog()) return wait_shortly(condition, mutex);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  return real(condition, mutex, clock, until);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (watchdog()) return wait_shortly(condition, mutex);
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  return real(condition, mutex, until);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (is_watchdog == 1 && (clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC) && later[clock]) {
    later[clock] = 0;
    now->tv_nsec += 200000000;
    if (now->tv_nsec >= 1000000000) {
      now->tv_nsec -= 1000000000;
      now->tv_sec++;
    }
  }
  return result;
}

// c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, Device): PyTorch's allocators call it for each block
// that they hand out (its bytes) and take back (its bytes, negative).
#define REPORTED _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static void (*handed_out)(const void *block, size_t bytes);

void simgpu_on_block(void (*function)(const void *block, size_t bytes)) { handed_out = function; }

void REPORTED(void *block, long bytes, size_t allocated, size_t reserved, unsigned short device) {
  static void (*real)(void *, long, size_t, size_t, unsigned short);
  if (handed_out && bytes > 0) handed_out(block, bytes);
  if (!real) {
    void *c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    real = c10 ? dlsym(c10, TEXT(REPORTED)) : 0;
  }
  if (real) real(block, bytes, allocated, reserved, device);
}
