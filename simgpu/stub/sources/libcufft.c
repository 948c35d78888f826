// cuFFT: the sizes of plans' work areas, as cufft.h and cufftXt.h declare them. Everything else does nothing.
#include "workspaces.h"

int cufftCreate(int *plan) {
  *plan = 1;
  return 0;
}

int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *inembed, long long istride, long long idist,
                        int input, long long *onembed, long long ostride, long long odist, int output,
                        long long batch, size_t *bytes, int execution) {
  return none(bytes);
}

int cufftMakePlanMany64(int plan, int rank, long long *n, long long *inembed, long long istride, long long idist,
                        long long *onembed, long long ostride, long long odist, int type, long long batch,
                        size_t *bytes) {
  return none(bytes);
}

int cufftMakePlanMany(int plan, int rank, int *n, int *inembed, int istride, int idist, int *onembed, int ostride,
                      int odist, int type, int batch, size_t *bytes) {
  return none(bytes);
}

int cufftMakePlan1d(int plan, int nx, int type, int batch, size_t *bytes) { return none(bytes); }
int cufftMakePlan2d(int plan, int nx, int ny, int type, size_t *bytes) { return none(bytes); }
int cufftMakePlan3d(int plan, int nx, int ny, int nz, int type, size_t *bytes) { return none(bytes); }
int cufftGetSize(int plan, size_t *bytes) { return none(bytes); }
