// What the files of this stub share: the pretended device and its memory.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define __CUDART_API_VERSION (1000 * CUDA_MAJOR)
#include <cuda_runtime_api.h>
#undef cudaGetDeviceProperties

#define GRANULARITY ((size_t)2 << 20) // of cudaMalloc and of cuMemCreate

// An environment variable as a number, or `otherwise` if it is not set.
size_t setting(const char *name, size_t otherwise);
int tracing(void); // whether MOCK_TRACE is set

extern __thread int current_device;
cudaError_t failed(cudaError_t error); // remembers an error for cudaGetLastError and returns it

int take_memory(int device, size_t bytes); // whether so much was left, and has been taken
void give_memory(int device, size_t bytes);
size_t total_memory(void);
size_t
used_memory(void); // of the current device by this process: its context, once it has one, and what it took
const char *device_name(void);

int on_device(const void *pointer);
void host_read(size_t bytes); // the host has read so many bytes of the device (reads.c)
void host_waited(void);       // the host has waited for all that was given to the device (graphs.c)
void captured(cudaStream_t stream); // something was given to a stream: a node of the graph, if it is being captured
void launched(cudaStream_t stream);   // the same for a kernel
void launched_elsewhere(cudaStream_t stream, void **arguments, const void *buffer,
                        size_t bytes);        // the same for one that is not PyTorch's (written.c)
void launched_of_torch(cudaStream_t stream, void **arguments); // the same for one that is
int capturing(void);                                           // whether a CUDA graph is being captured (graphs.c)
void replayed(cudaStream_t stream);                            // a CUDA graph ran again
void collective_captured(void);
void wrote(const void *to);                                    // a copy or a memset to the device
void copied_to_device(const void *from, size_t bytes);
void bind_storage(void);                   // waits until NCCL's watchdog has seen all collectives
void collective_issued(void);
