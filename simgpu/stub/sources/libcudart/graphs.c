// Capture of CUDA graphs: which streams are captured, what may not be done meanwhile, and graphs that replay nothing.
#include "device.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MOST 4096

// Each stream and event that belongs to a capture, with the capture's number.
static struct {
  const void *handle;
  unsigned long long capture;
} joined[MOST];
static int count = 0;

static struct {
  unsigned long long number; // 0: none
  const void *origin;
  int invalid;
  size_t nodes;
} capture;
static unsigned long long captures = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned long long capture_of(const void *handle) {
  for (int i = 0; i < count; i++)
    if (joined[i].handle == handle && joined[i].capture == capture.number) return capture.number;
  return 0;
}

static void join(const void *handle) {
  if (capture_of(handle) || count == MOST) return;
  joined[count].handle = handle;
  joined[count].capture = capture.number;
  count++;
}

// An operation that a capture forbids: it fails, and so does the capture.
static cudaError_t forbidden(const void *stream, int any_stream) {
  if (!capture.number || (!any_stream && !capture_of(stream))) return cudaSuccess;
  capture.invalid = 1;
  return failed(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  pthread_mutex_lock(&lock);
  memset(&capture, 0, sizeof capture);
  count = 0;
  capture.number = ++captures;
  capture.origin = stream;
  join(stream);
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  int invalid = capture.invalid || !capture.number;
  *graph = invalid ? 0 : (cudaGraph_t)(0x9000 + 16 * capture.nodes);
  memset(&capture, 0, sizeof capture);
  count = 0;
  return invalid ? failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}

static enum cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  if (!capture.number || !capture_of(stream)) return cudaStreamCaptureStatusNone;
  return capture.invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = status_of(stream);
  return cudaSuccess;
}

static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, size_t *number) {
  enum cudaStreamCaptureStatus found = status_of(stream);
  if (status) *status = found;
  if (id) *id = found == cudaStreamCaptureStatusNone ? 0 : capture.number;
  if (graph) *graph = 0;
  if (number) *number = 0;
  return cudaSuccess;
}

// CUDA 12 has three forms under names of their own, of which the third came with 12.3. CUDA 13 has only the third.
#undef cudaStreamGetCaptureInfo
#if CUDART_VERSION < 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id) {
  return capture_info(stream, status, id, 0, 0);
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *number) {
  return capture_info(stream, status, id, graph, number);
}
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#endif
#if CUDART_VERSION >= 12030
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *number) {
  return capture_info(stream, status, id, graph, number);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }

int capturing(void) { return capture.number != 0; }

static int other_streams; // whether work was given to another stream than the default ones, outside of a capture

int mock_used_streams(void) { return other_streams; }

// A launch on a captured stream is a node of the graph.
void captured(cudaStream_t stream) {
  if (capture_of(stream))
    capture.nodes++;
  else if ((uintptr_t)stream > (uintptr_t)cudaStreamPerThread)
    other_streams = 1;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *number) {
  *number = ((size_t)graph - 0x9000) / 16;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  *executable = (cudaGraphExec_t)0xa000;
  return cudaSuccess;
}

// When work ends. By default at once: that is the least memory that a program can need. With MOCK_COMPLETION=sync it
// ends when the host next waits for the device, which is the most: an event that was recorded since is not ready.
#define POLLS 1000 // an event that a program asks so often for has happened
static unsigned long long recorded = 1, waited = 0;
static struct {
  const void *event;
  unsigned long long when;
  int polls;
} events[1 << 16]; // by the event's handle; another event in its place has happened

static int ends_late(void) {
  static int late = -1;
  const char *text;
  if (late < 0) late = (text = getenv("MOCK_COMPLETION")) && !strcmp(text, "sync");
  return late;
}

static size_t slot(const void *event) { return ((uintptr_t)event >> 4) & ((1 << 16) - 1); }

void host_waited(void) { __atomic_store_n(&waited, __atomic_load_n(&recorded, __ATOMIC_RELAXED), __ATOMIC_RELAXED); }

static int is_ready(const void *event) {
  size_t at = slot(event);
  if (!ends_late() || events[at].event != event || events[at].when <= waited) return 1;
  return ++events[at].polls > POLLS;
}

// Events carry a capture from stream to stream.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (capture.number && capture_of(stream)) join(event);
  if (ends_late()) {
    size_t at = slot(event);
    events[at].event = event;
    events[at].when = __atomic_add_fetch(&recorded, 1, __ATOMIC_RELAXED);
    events[at].polls = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (capture.number && capture_of(event)) join(stream);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  cudaError_t error = forbidden(event, 0);
  return error ? error : is_ready(event) ? cudaSuccess : cudaErrorNotReady;
}

static cudaError_t waits(const void *stream, int any_stream) {
  cudaError_t error = forbidden(stream, any_stream);
  if (!error) host_waited();
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  cudaError_t error = forbidden(event, 0);
  size_t at = slot(event);
  if (!error && ends_late() && events[at].event == event && events[at].when > waited) waited = events[at].when;
  return error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return forbidden(stream, 0); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return waits(stream, 0); }
cudaError_t cudaDeviceSynchronize(void) { return waits(0, 1); }
