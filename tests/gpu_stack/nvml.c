/* A stand-in for NVIDIA's libnvidia-ml.so.1: H100s of 80 GiB, as many and as full as the environment says.
 *
 * FAKE_DRIVER is the driver's version, FAKE_GPUS the number of GPUs, FAKE_FREE_GIB the memory that each has free,
 * and FAKE_HOLDER the id of the process that holds the rest. */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static const unsigned long long GIB = 1ull << 30;
static int handles[64];

static unsigned long setting(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

static unsigned gpus(void) { return (unsigned)setting("FAKE_GPUS", 1); }

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return "error of the stand-in for NVML"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    const char *version = getenv("FAKE_DRIVER");
    snprintf(text, size, "%s", version ? version : "580.65.06");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount(unsigned *count) { *count = gpus(); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = gpus(); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= gpus())
        return NOT_FOUND;
    *handle = &handles[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    unsigned index;
    return sscanf(uuid, "GPU-%u", &index) == 1 ? nvmlDeviceGetHandleByIndex_v2(index, handle) : NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) { *index = (unsigned)((int *)handle - handles); return SUCCESS; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { snprintf(text, size, "NVIDIA H100 80GB HBM3"); return SUCCESS; }

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "GPU-%d", (int)((int *)handle - handles));
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = 9; *minor = 0; return SUCCESS; }

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    memory->total = 80 * GIB;
    memory->free = setting("FAKE_FREE_GIB", 79) * GIB;
    memory->used = memory->total - memory->free;
    return SUCCESS;
}

struct process { unsigned id; unsigned long long memory; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
    unsigned long holder = setting("FAKE_HOLDER", 0);
    unsigned room = *count;
    *count = holder != 0;
    if (*count > room)
        return INSUFFICIENT_SIZE;
    if (holder)
        *processes = (struct process){(unsigned)holder, (80 - setting("FAKE_FREE_GIB", 79)) * GIB, 0, 0};
    return SUCCESS;
}
