#include <stdint.h>
static uintptr_t h_ = 0x2000;
int cublasCreate_v2(void **h) {
  h_ += 64;
  *h = (void *)h_;
  return 0;
}
int cublasGetPointerMode_v2(void *h, int *m) {
  *m = 0;
  return 0;
}
int cublasGetMathMode(void *h, int *m) {
  *m = 0;
  return 0;
}
