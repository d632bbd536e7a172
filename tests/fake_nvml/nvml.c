/* A libnvidia-ml.so.1 for tests. Its state is the text file $FAKE_NVML, read again at every call:
 *
 *   count 2                              GPUs
 *   driver 570.86.15
 *   0.temperature_c 41                   a value of GPU 0
 *   0.ret 15                             error code of every call on GPU 0
 *   0.nvmlDeviceGetTemperature.ret 3     error code of one call
 *   0.nvmlDeviceGetTemperature.sleep_s 60
 *
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9

typedef void *device_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

/* The value of a key; -1 where the file or the key is missing. */
static long find(const char *key, char *text, size_t room) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128], value[128];
    long found = -1;
    if (!file)
        return -1;
    while (fscanf(file, "%127s %127s", name, value) == 2)
        if (!strcmp(name, key)) {
            found = atol(value);
            if (text)
                snprintf(text, room, "%s", value);
        }
    fclose(file);
    return found;
}

static long ask(device_t gpu, const char *what, char *text, size_t room) {
    char key[128];
    snprintf(key, sizeof key, "%ld.%s", (long)gpu - 1, what);
    return find(key, text, room);
}

static int enter(device_t gpu, const char *symbol) {
    char what[128];
    long value;
    snprintf(what, sizeof what, "%s.sleep_s", symbol);
    if ((value = ask(gpu, what, NULL, 0)) > 0)
        sleep(value);
    snprintf(what, sizeof what, "%s.ret", symbol);
    if ((value = ask(gpu, what, NULL, 0)) > 0)
        return value;
    return (value = ask(gpu, "ret", NULL, 0)) > 0 ? value : SUCCESS;
}

#define ENTER(gpu) do { int code = enter(gpu, __func__); if (code) return code; } while (0)
#define VALUE(what) ({ long v = ask(gpu, what, NULL, 0); v < 0 ? 0 : v; })

int nvmlInitWithFlags(unsigned flags) { (void)flags; return find("count", NULL, 0) < 0 ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = find("count", NULL, 0); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned room) { find("driver", text, room); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *gpu) {
    if (index >= (unsigned)find("count", NULL, 0))
        return INVALID_ARGUMENT;
    *gpu = (device_t)(long)(index + 1);
    return enter(*gpu, __func__);
}

int nvmlDeviceGetMinorNumber(device_t gpu, unsigned *minor) {
    ENTER(gpu);
    long value = ask(gpu, "minor", NULL, 0);
    *minor = value < 0 ? (long)gpu - 1 : value;
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t gpu, char *text, unsigned room) {
    ENTER(gpu);
    snprintf(text, room, "GPU-0000000%ld", (long)gpu - 1);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t gpu, char *text, unsigned room) {
    ENTER(gpu);
    snprintf(text, room, "Fake H100");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device_t gpu, pci_t *pci) {
    ENTER(gpu);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:0%ld:00.0", (long)gpu);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device_t gpu, int sensor, unsigned *value) {
    (void)sensor;
    ENTER(gpu);
    *value = VALUE("temperature_c");
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t gpu, unsigned *value) {
    ENTER(gpu);
    *value = VALUE("power_mw");
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t gpu, utilization_t *value) {
    ENTER(gpu);
    value->gpu = VALUE("utilization_percent");
    value->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t gpu, memory_t *value) {
    ENTER(gpu);
    value->total = 80ULL << 30;
    value->used = (unsigned long long)VALUE("used_mib") << 20;
    value->free = value->total - value->used;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t gpu, int type, int counter, unsigned long long *value) {
    (void)type, (void)counter;
    ENTER(gpu);
    *value = VALUE("ecc_uncorrected");
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    ENTER(gpu);
    *corrected = 0;
    *uncorrected = VALUE("remapped_rows");
    *pending = VALUE("remap_pending");
    *failed = VALUE("remap_failed");
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t gpu, unsigned long long *value) {
    ENTER(gpu);
    *value = VALUE("clock_limits");
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t gpu, unsigned *count, process_t *processes) {
    ENTER(gpu);
    long pid = VALUE("pid");
    unsigned room = *count;
    *count = pid > 0;
    if (!pid)
        return SUCCESS;
    if (!room)
        return INSUFFICIENT_SIZE;
    processes[0] = (process_t){pid, (unsigned long long)VALUE("used_mib") << 20, 0, 0};
    return SUCCESS;
}
