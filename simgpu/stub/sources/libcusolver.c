// cuSOLVER: the sizes of workspaces, as cusolverDn.h declares them. Everything else does nothing.
#include "workspaces.h"

typedef void *P;

#define FOR_REAL(NAME, ...) int cusolverDnS##NAME(__VA_ARGS__) BODY int cusolverDnD##NAME(__VA_ARGS__) BODY
#define FOR_COMPLEX(NAME, ...) int cusolverDnC##NAME(__VA_ARGS__) BODY int cusolverDnZ##NAME(__VA_ARGS__) BODY
#define FOR_ALL(NAME, ...) FOR_REAL(NAME, __VA_ARGS__) FOR_COMPLEX(NAME, __VA_ARGS__)

#define BODY                                                                                                 \
  { return no_elements(lwork); }
FOR_ALL(getrf_bufferSize, P handle, int m, int n, P a, int lda, int *lwork)
FOR_ALL(potrf_bufferSize, P handle, int uplo, int n, P a, int lda, int *lwork)
FOR_ALL(geqrf_bufferSize, P handle, int m, int n, P a, int lda, int *lwork)
FOR_ALL(sytrf_bufferSize, P handle, int n, P a, int lda, int *lwork)
FOR_ALL(gesvd_bufferSize, P handle, int m, int n, int *lwork)
FOR_REAL(orgqr_bufferSize, P handle, int m, int n, int k, P a, int lda, P tau, int *lwork)
FOR_COMPLEX(ungqr_bufferSize, P handle, int m, int n, int k, P a, int lda, P tau, int *lwork)
FOR_REAL(ormqr_bufferSize, P handle, int side, int trans, int m, int n, int k, P a, int lda, P tau, P c, int ldc,
         int *lwork)
FOR_COMPLEX(unmqr_bufferSize, P handle, int side, int trans, int m, int n, int k, P a, int lda, P tau, P c,
            int ldc, int *lwork)
FOR_REAL(syevd_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork)
FOR_COMPLEX(heevd_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork)
FOR_REAL(syevj_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork, P params)
FOR_COMPLEX(heevj_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork, P params)
FOR_REAL(syevjBatched_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork, P params,
         int batch)
FOR_COMPLEX(heevjBatched_bufferSize, P handle, int jobz, int uplo, int n, P a, int lda, P w, int *lwork, P params,
            int batch)
FOR_ALL(gesvdj_bufferSize, P handle, int jobz, int econ, int m, int n, P a, int lda, P s, P u, int ldu, P v,
        int ldv, int *lwork, P params)
FOR_ALL(gesvdjBatched_bufferSize, P handle, int jobz, int m, int n, P a, int lda, P s, P u, int ldu, P v, int ldv,
        int *lwork, P params, int batch)
FOR_ALL(gesvdaStridedBatched_bufferSize, P handle, int jobz, int rank, int m, int n, P a, int lda, long long stride_a,
        P s, long long stride_s, P u, int ldu, long long stride_u, P v, int ldv, long long stride_v, int *lwork,
        int batch)
#undef BODY

static int nowhere(size_t *on_device, size_t *on_host) {
  none(on_host);
  return none(on_device);
}

#define SIZES size_t *device, size_t *host
#define X(NAME, ...)                                                                                         \
  int cusolverDnX##NAME(P handle, P params, __VA_ARGS__, int compute, SIZES) { return nowhere(device, host); }
X(getrf_bufferSize, int64_t m, int64_t n, int type_a, P a, int64_t lda)
X(potrf_bufferSize, int uplo, int64_t n, int type_a, P a, int64_t lda)
X(geqrf_bufferSize, int64_t m, int64_t n, int type_a, P a, int64_t lda, int type_tau, P tau)
X(syevd_bufferSize, int jobz, int uplo, int64_t n, int type_a, P a, int64_t lda, int type_w, P w)
X(gesvd_bufferSize, signed char jobu, signed char jobvt, int64_t m, int64_t n, int type_a, P a, int64_t lda,
  int type_s, P s, int type_u, P u, int64_t ldu, int type_vt, P vt, int64_t ldvt)
X(gesvdp_bufferSize, int jobz, int econ, int64_t m, int64_t n, int type_a, P a, int64_t lda, int type_s, P s,
  int type_u, P u, int64_t ldu, int type_v, P v, int64_t ldv)
X(geev_bufferSize, int jobvl, int jobvr, int64_t n, int type_a, P a, int64_t lda, int type_w, P w, int type_vl, P vl,
  int64_t ldvl, int type_vr, P vr, int64_t ldvr)

int cusolverDnXsyevBatched_bufferSize(P handle, P params, int jobz, int uplo, int64_t n, int type_a, P a, int64_t lda,
                                      int type_w, P w, int compute, SIZES, int64_t batch) {
  return nowhere(device, host);
}

int cusolverDnXsytrs_bufferSize(P handle, int uplo, int64_t n, int64_t nrhs, int type_a, P a, int64_t lda, P ipiv,
                                int type_b, P b, int64_t ldb, SIZES) {
  return nowhere(device, host);
}
