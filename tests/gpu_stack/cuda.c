/* A stand-in for the driver's libcuda.so.1 on a machine without a GPU: every function fails with "no device".
 *
 * It appends a line with the process's id to the file FAKE_CUDA_LOG whenever CUDA is initialised. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_DEVICE = 100 };

static void note(const char *what) {
    const char *path = getenv("FAKE_CUDA_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0) {
        dprintf(file, "%d %s\n", getpid(), what);
        close(file);
    }
}

int cuInit(unsigned flags) { note("cuInit"); return NO_DEVICE; }
int cuDeviceGetCount(int *count) { note("cuDeviceGetCount"); *count = 0; return NO_DEVICE; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { *text = "no device"; return SUCCESS; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return SUCCESS; }

static int no_device(void) { return NO_DEVICE; }

int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status) {
    *function = dlsym(RTLD_DEFAULT, symbol);
    if (!strcmp(symbol, "cuInit"))
        *function = (void *)cuInit;
    else if (!strncmp(symbol, "cuGetProcAddress", 16))
        *function = (void *)cuGetProcAddress_v2;
    else if (!strcmp(symbol, "cuDriverGetVersion"))
        *function = (void *)cuDriverGetVersion;
    if (!*function)
        *function = (void *)no_device;
    if (status)
        *status = 0;
    return SUCCESS;
}

int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* What vLLM's and torch's libraries link. */
#define FAILS(name) int name(void) { return NO_DEVICE; }
FAILS(cuCtxCreate_v2) FAILS(cuCtxDestroy_v2) FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetDevice) FAILS(cuCtxGetId) FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent_v2) FAILS(cuCtxPushCurrent_v2) FAILS(cuCtxResetPersistingL2Cache)
FAILS(cuCtxSetCurrent) FAILS(cuCtxSetLimit) FAILS(cuDeviceGet)
FAILS(cuDeviceGetAttribute) FAILS(cuDeviceGetName) FAILS(cuDevicePrimaryCtxGetState)
FAILS(cuDevicePrimaryCtxRelease_v2) FAILS(cuDevicePrimaryCtxRetain) FAILS(cuEventCreate)
FAILS(cuEventDestroy_v2) FAILS(cuEventRecord) FAILS(cuEventSynchronize)
FAILS(cuFuncGetAttribute) FAILS(cuFuncSetAttribute) FAILS(cuFuncSetCacheConfig)
FAILS(cuGetExportTable) FAILS(cuLaunchCooperativeKernel) FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx) FAILS(cuLinkAddData_v2) FAILS(cuLinkComplete)
FAILS(cuLinkCreate_v2) FAILS(cuMemAddressFree) FAILS(cuMemAddressReserve)
FAILS(cuMemAllocAsync) FAILS(cuMemAllocPitch_v2) FAILS(cuMemAlloc_v2)
FAILS(cuMemCreate) FAILS(cuMemFreeAsync) FAILS(cuMemFree_v2)
FAILS(cuMemGetAllocationGranularity) FAILS(cuMemMap) FAILS(cuMemRelease)
FAILS(cuMemSetAccess) FAILS(cuMemUnmap) FAILS(cuMemcpy2DAsync_v2)
FAILS(cuMemcpy2D_v2) FAILS(cuMemcpyDtoH_v2) FAILS(cuMemcpyHtoD_v2)
FAILS(cuModuleGetFunction) FAILS(cuModuleLoad) FAILS(cuModuleLoadData)
FAILS(cuModuleLoadDataEx) FAILS(cuModuleUnload) FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuPointerGetAttribute) FAILS(cuStreamCreate) FAILS(cuStreamDestroy_v2)
FAILS(cuStreamGetCtx) FAILS(cuStreamSetAttribute) FAILS(cuStreamSynchronize)
FAILS(cuStreamWaitEvent) FAILS(cuTensorMapEncodeIm2col) FAILS(cuTensorMapEncodeTiled)
