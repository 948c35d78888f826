// What the host reads of the device, reported to whoever asks: how many bytes, and the operator of ATen that reads,
// or "is_nonzero" where a truth value is asked for.
#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define DEEPEST 128 // frames; those of Python's interpreter are among them
#define KNOWN (1 << 12)

static void (*reported)(size_t bytes, const char *operator);

void mock_on_read(void (*function)(size_t bytes, const char *operator)) { reported = function; }

// "nonzero" of "_ZN2at4_ops7nonzero4callE...", or 0. It is looked up once for each address, because that is slow.
static const char *operator_of(void *address) {
  static struct {
    void *address;
    char name[64];
  } known[KNOWN];
  static const char prefix[] = "_ZN2at4_ops";
  size_t at = ((uintptr_t)address >> 2) % KNOWN;
  if (known[at].address != address) {
    Dl_info info;
    int length = 0;
    known[at].address = address;
    known[at].name[0] = 0;
    if (dladdr(address, &info) && info.dli_sname && !strncmp(info.dli_sname, prefix, sizeof prefix - 1)) {
      char *name = 0;
      length = strtol(info.dli_sname + sizeof prefix - 1, &name, 10);
      if (length > 0 && length < (int)sizeof known[at].name) snprintf(known[at].name, length + 1, "%s", name);
    }
  }
  return known[at].name[0] ? known[at].name : 0;
}

void host_read(size_t bytes) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  void *addresses[DEEPEST];
  char operator[64] = "";
  if (!reported) return;
  int depth = backtrace(addresses, DEEPEST);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < depth; i++) {
    const char *name = operator_of(addresses[i]);
    if (name && (!*operator || !strcmp(name, "is_nonzero"))) strcpy(operator, name); // bool() reads by item()
  }
  pthread_mutex_unlock(&lock);
  reported(bytes, operator); // not under the lock, because Python's is taken there
}
