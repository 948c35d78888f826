// cuSPARSE: the sizes of buffers, as cusparse.h declares them. Everything else does nothing.
#include "workspaces.h"

typedef void *P;

int cusparseSpMV_bufferSize(P handle, int op, P alpha, P a, P x, P beta, P y, int type, int algorithm, size_t *bytes) {
  return none(bytes);
}

int cusparseSpMM_bufferSize(P handle, int op_a, int op_b, P alpha, P a, P b, P beta, P c, int type, int algorithm,
                            size_t *bytes) {
  return none(bytes);
}

int cusparseSDDMM_bufferSize(P handle, int op_a, int op_b, P alpha, P a, P b, P beta, P c, int type, int algorithm,
                             size_t *bytes) {
  return none(bytes);
}

int cusparseSpSV_bufferSize(P handle, int op, P alpha, P a, P x, P y, int type, int algorithm, P description,
                            size_t *bytes) {
  return none(bytes);
}

int cusparseSpSM_bufferSize(P handle, int op_a, int op_b, P alpha, P a, P b, P c, int type, int algorithm,
                            P description, size_t *bytes) {
  return none(bytes);
}

int cusparseSpGEMM_workEstimation(P handle, int op_a, int op_b, P alpha, P a, P b, P beta, P c, int type,
                                  int algorithm, P description, size_t *bytes, P buffer) {
  return buffer ? 0 : none(bytes);
}

int cusparseSpGEMM_compute(P handle, int op_a, int op_b, P alpha, P a, P b, P beta, P c, int type, int algorithm,
                           P description, size_t *bytes, P buffer) {
  return buffer ? 0 : none(bytes);
}

int cusparseDenseToSparse_bufferSize(P handle, P a, P b, int algorithm, size_t *bytes) { return none(bytes); }
int cusparseSparseToDense_bufferSize(P handle, P a, P b, int algorithm, size_t *bytes) { return none(bytes); }

int cusparseSpMatGetSize(P matrix, int64_t *rows, int64_t *columns, int64_t *nonzero) {
  *rows = *columns = *nonzero = 0;
  return 0;
}
