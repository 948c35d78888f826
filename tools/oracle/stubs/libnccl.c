int ncclGetVersion(int *v) {
  *v = 22907;
  return 0;
}
const char *ncclGetErrorString(int e) { return "mock"; }
const char *ncclGetLastError(void *c) { return "mock"; }
