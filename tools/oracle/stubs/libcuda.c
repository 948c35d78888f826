// The driver, as far as PyTorch links it directly.
int cuCtxGetCurrent(void **context) {
  *context = (void *)0x77;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }

int cuGetErrorString(int error, const char **text) {
  *text = "stub error";
  return 0;
}
