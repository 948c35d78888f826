// Sizes that only the real library knows: workspaces of no bytes. CALLED records that the program asked, so that the
// report names the library.
#include <stddef.h>
#include <stdint.h>

extern int CALLED;

static int none(size_t *bytes) {
  CALLED = 1;
  if (bytes) *bytes = 0;
  return 0;
}

static int no_elements(int *elements) {
  CALLED = 1;
  if (elements) *elements = 0;
  return 0;
}
