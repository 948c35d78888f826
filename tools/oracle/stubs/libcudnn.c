#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static uintptr_t h_ = 0x4000;
size_t cudnnGetVersion(void) {
  const char *s = getenv("MOCK_CUDNN");
  return s ? atoi(s) : 92000;
}
size_t cudnnGetCudartVersion(void) { return 13000; }
int cudnnGetProperty(int t, int *v) {
  {
    const char *s = getenv("MOCK_CUDNN");
    int x = s ? atoi(s) : 92000;
    *v = t == 0 ? x / 10000 : t == 1 ? (x / 100) % 100 : x % 100;
  }
  return 0;
}
int cudnnCreate(void **h) {
  *h = (void *)(h_ += 64);
  return 0;
}
const char *cudnnGetErrorString(int e) { return "mock cudnn error"; }
#define MAKE_HANDLE(n)                                                                                       \
  int n(void **d) {                                                                                          \
    *d = (void *)(h_ += 64);                                                                                 \
    return 0;                                                                                                \
  }
MAKE_HANDLE(cudnnCreateActivationDescriptor)
MAKE_HANDLE(cudnnCreateCTCLossDescriptor)
MAKE_HANDLE(cudnnCreateConvolutionDescriptor)
MAKE_HANDLE(cudnnCreateDropoutDescriptor)
MAKE_HANDLE(cudnnCreateFilterDescriptor)
MAKE_HANDLE(cudnnCreatePoolingDescriptor)
MAKE_HANDLE(cudnnCreateRNNDataDescriptor)
MAKE_HANDLE(cudnnCreateRNNDescriptor)
MAKE_HANDLE(cudnnCreateSpatialTransformerDescriptor)
MAKE_HANDLE(cudnnCreateTensorDescriptor)
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *a, int b, int c, void *d, void *e, void *f,
                                                      void *g, void *h, void *i, void *j, size_t *s) {
  *s = 0;
  return 0;
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *a, int b, int c, void *d, void *e, void *f,
                                                             void *g, void *h, size_t *s) {
  *s = 0;
  return 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *a, int b, int c, void *d, void *e, size_t *s) {
  *s = 0;
  return 0;
}
int cudnnBackendCreateDescriptor(int t, void **d) {
  *d = calloc(1, 64);
  return 0;
}
int cudnnBackendDestroyDescriptor(void *d) {
  free(d);
  return 0;
}
int cudnnBackendGetAttribute(void *d, int name, int type, int64_t req, int64_t *cnt, void *arr) {
  if (getenv("MOCK_TRACE_DNN")) fprintf(stderr, "[dnn] get attr %d type %d req %ld\n", name, type, (long)req);
  if (cnt) *cnt = req > 0 ? 1 : 1;
  if (arr && type != 15) {
    size_t s = (type == 3 || type == 5 || type == 0) ? 8 : 4;
    if (type == 3)
      *(int64_t *)arr = 0;
    else if (type == 5)
      *(double *)arr = 0;
    else
      *(int *)arr = 0;
  }
  return 0;
}
