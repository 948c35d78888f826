// A communicator of which one rank is here. The others have what this one has: what is gathered is this rank's, as often
// as there are ranks, and a sum is as many times this rank's. Values are followed where they are small (libcudart's
// memory of small copies); nothing else is sent or received.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST ((size_t)64 << 10)
#define PEERS 4096

struct communicator {
  int ranks, rank;
  int64_t sent[PEERS]; // the last single integer that went to each peer, plus 1 so that 0 is none
};
struct id {
  char bytes[128];
};

void collective_issued(void);
int mock_recall(void *to, const void *from, size_t bytes);

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT, FLOAT8A, FLOAT8B };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

static size_t size_of(int type) {
  static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return SIZES[type];
}

static struct communicator *of(void *made) { return made; }

int ncclGetVersion(int *version) {
  *version = 22907;
  return 0;
}

const char *ncclGetErrorString(int result) { return "stub error"; }
const char *ncclGetLastError(void *communicator) { return "stub error"; }

int ncclGetUniqueId(struct id *id) {
  memset(id, 0, sizeof *id);
  return 0;
}

int ncclCommInitRankConfig(void **made, int ranks, struct id id, int rank, void *config) {
  struct communicator *here = calloc(1, sizeof *here);
  here->ranks = ranks;
  here->rank = rank;
  *made = here;
  return 0;
}

int ncclCommInitRank(void **made, int ranks, struct id id, int rank) {
  return ncclCommInitRankConfig(made, ranks, id, rank, 0);
}

int ncclCommInitRankScalable(void **made, int ranks, int rank, int ids, struct id *id, void *config) {
  return ncclCommInitRankConfig(made, ranks, *id, rank, config);
}

int ncclCommDestroy(void *made) { return 0; }
int ncclCommAbort(void *made) { return 0; }
int ncclCommFinalize(void *made) { return 0; }

int ncclCommCount(void *made, int *ranks) {
  *ranks = of(made)->ranks;
  return 0;
}

int ncclCommUserRank(void *made, int *rank) {
  *rank = of(made)->rank;
  return 0;
}

int ncclCommGetAsyncError(void *made, int *error) {
  *error = 0;
  return 0;
}

// What is there is not what was copied there: it came from elsewhere, and is not known.
static void unknown(void *to, size_t bytes) { cudaMemset(to, 0, bytes); }

int ncclAllGather(const void *send, void *receive, size_t count, int type, void *made, cudaStream_t stream) {
  collective_issued();
  size_t bytes = count * size_of(type);
  static __thread char values[MOST];
  int known = bytes <= MOST && mock_recall(values, send, bytes);
  for (int i = 0; i < of(made)->ranks; i++) {
    char *to = (char *)receive + i * bytes;
    if (known)
      cudaMemcpy(to, values, bytes, cudaMemcpyHostToDevice);
    else
      unknown(to, bytes);
  }
  return 0;
}

int ncclAlltoAll(const void *send, void *receive, size_t count, int type, void *made, cudaStream_t stream) {
  collective_issued();
  unknown(receive, of(made)->ranks * count * size_of(type));
  return 0;
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, void *made, cudaStream_t stream) {
  collective_issued();
  return cudaMemcpy(receive, send, count * size_of(type), cudaMemcpyDeviceToDevice);
}

int ncclBcast(void *buffer, size_t count, int type, int root, void *made, cudaStream_t stream) {
  collective_issued();
  return 0;
}

static void times(void *values, size_t count, int type, int ranks) {
  for (size_t i = 0; i < count; i++) {
    if (type == INT32 || type == UINT32) ((uint32_t *)values)[i] *= ranks;
    if (type == INT64 || type == UINT64) ((uint64_t *)values)[i] *= ranks;
    if (type == FLOAT) ((float *)values)[i] *= ranks;
    if (type == DOUBLE) ((double *)values)[i] *= ranks;
  }
}

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *made,
                  cudaStream_t stream) {
  collective_issued();
  size_t bytes = count * size_of(type);
  static __thread char values[MOST];
  int followed = operation == MAXIMUM || operation == MINIMUM || operation == AVERAGE ||
                 (operation == SUM && type != INT8 && type != UINT8 && type != HALF && type <= DOUBLE);
  if (!followed || bytes > MOST || !mock_recall(values, send, bytes)) {
    unknown(receive, bytes);
    return 0;
  }
  if (operation == SUM) times(values, count, type, of(made)->ranks);
  return cudaMemcpy(receive, values, bytes, cudaMemcpyHostToDevice);
}

int ncclReduce(const void *send, void *receive, size_t count, int type, int operation, int root, void *made,
               cudaStream_t stream) {
  collective_issued();
  return of(made)->rank == root ? ncclAllReduce(send, receive, count, type, operation, made, stream) : 0;
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, void *made,
                      cudaStream_t stream) {
  collective_issued();
  size_t bytes = count * size_of(type);
  return ncclAllReduce((const char *)send + of(made)->rank * bytes, receive, count, type, operation, made, stream);
}

// A single integer that one rank sends to the next is a vote (torch.distributed.pipelining: "is my metadata static?"),
// and what comes back is the product of all. The others vote yes: 1, unless this rank has sent them something else.
static int is_vote(size_t count, int type) { return count == 1 && type == INT32; }

int ncclSend(const void *send, size_t count, int type, int peer, void *made, cudaStream_t stream) {
  collective_issued();
  int32_t vote;
  if (is_vote(count, type) && peer < PEERS && mock_recall(&vote, send, sizeof vote)) of(made)->sent[peer] = vote + 1;
  return 0;
}

int ncclRecv(void *receive, size_t count, int type, int peer, void *made, cudaStream_t stream) {
  collective_issued();
  if (!is_vote(count, type) || peer >= PEERS) {
    unknown(receive, count * size_of(type));
    return 0;
  }
  int64_t sent = of(made)->sent[peer];
  int32_t vote = sent ? sent - 1 : 1;
  return cudaMemcpy(receive, &vote, sizeof vote, cudaMemcpyHostToDevice);
}
