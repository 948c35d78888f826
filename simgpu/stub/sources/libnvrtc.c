// The compiler of kernels that PyTorch writes at run time (special functions): it compiles nothing and says that it has.
#include <stddef.h>

int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
  *program = (void *)0x77;
  return 0;
}

int nvrtcGetProgramLogSize(void *program, size_t *size) {
  *size = 1;
  return 0;
}

int nvrtcGetPTXSize(void *program, size_t *size) {
  *size = 16;
  return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *size) {
  *size = 16;
  return 0;
}

int nvrtcGetLoweredName(void *program, const char *expression, const char **name) {
  *name = "kernel";
  return 0;
}

const char *nvrtcGetErrorString(int result) { return "no error"; }
