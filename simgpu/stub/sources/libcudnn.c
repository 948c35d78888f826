// cuDNN: every descriptor can be made; workspaces are of no bytes, for their real sizes only a GPU can tell.
#include <stdint.h>
#include <stdlib.h>

#include "workspaces.h"

static int made(void **descriptor) {
  *descriptor = calloc(1, 64);
  return 0;
}

size_t cudnnGetVersion(void) {
  const char *version = getenv("MOCK_CUDNN");
  return version ? atoi(version) : 92000;
}

size_t cudnnGetCudartVersion(void) { return 13000; }

int cudnnGetProperty(int property, int *value) {
  int version = cudnnGetVersion();
  *value = property == 0 ? version / 10000 : property == 1 ? version / 100 % 100 : version % 100;
  return 0;
}

const char *cudnnGetErrorString(int status) { return "stub error"; }

#define MAKE_HANDLE(name)                                                                                    \
  int name(void **descriptor) { return made(descriptor); }
MAKE_HANDLE(cudnnCreate)
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

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                      void *y, void *dy, void *dz, void *dx, void *parameters,
                                                      void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                             void *z, void *y, void *parameters,
                                                             void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                         void *activation, void *x, size_t *bytes) {
  *bytes = 0;
  return 0;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) { return made(descriptor); }

int cudnnBackendDestroyDescriptor(void *descriptor) {
  free(descriptor);
  return 0;
}

enum { INT64 = 3, DOUBLE = 5, BACKEND_DESCRIPTOR = 15 }; // cudnnBackendAttributeType_t

// One element of each attribute, and it is zero.
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t requested, int64_t *count,
                             void *elements) {
  if (count) *count = 1;
  if (!elements || type == BACKEND_DESCRIPTOR) return 0;
  if (type == INT64)
    *(int64_t *)elements = 0;
  else if (type == DOUBLE)
    *(double *)elements = 0;
  else
    *(int *)elements = 0;
  return 0;
}

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) { return none(bytes); }

int cudnnGetRNNWeightSpaceSize(void *handle, void *rnn, size_t *bytes) { return none(bytes); }

int cudnnGetRNNTempSpaceSizes(void *handle, void *rnn, int mode, void *x, size_t *workspace, size_t *reserve) {
  none(reserve);
  return none(workspace);
}

int cudnnGetCTCLossWorkspaceSize(void *handle, void *probabilities, void *gradients, void *labels, void *label_lengths,
                                 void *input_lengths, int algorithm, void *loss, size_t *bytes) {
  return none(bytes);
}

int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, void *probabilities, void *gradients,
                                    size_t *bytes) {
  return none(bytes);
}
