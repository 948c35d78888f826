int cuCtxGetCurrent(void **c) {
  *c = (void *)0x77;
  return 0;
}
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) {
  if (f) *f = 0;
  if (a) *a = 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) {
  *c = (void *)0x77;
  return 0;
}
int cuGetErrorString(int e, const char **s) {
  *s = "mock";
  return 0;
}
