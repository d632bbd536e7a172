/* A libnvidia-ml.so.1 for tests. Its state is the text file $FAKE_NVML, or else `state` beside the library,
 * read again when it changes:
 *
 *   count 2                              GPUs
 *   driver 570.86.15
 *   0.temperature_c 41                   a value of GPU 0
 *   0.ret 15                             error code of every call on GPU 0
 *   0.nvmlDeviceGetTemperature.ret 3     error code of one call
 *   0.nvmlDeviceGetTemperature.sleep_s 60
 *   0.clock_limits 8
 *   0.clock_limits.then 0                what clock_limits, pid and fabric_state are from the second call on
 *   0.link.7 2                           state of one NVLink: 0 down, 1 up, 2 asleep
 *   0.field.230.ret 3                    error code of one field
 *   init.ret 18                          error code of nvmlInit; init.sleep_s likewise
 *   1.event 79                           an Xid that NVML tells of, once for each new `events` (a number)
 *   events 1
 *   event.ret 15                         error code of every wait for one
 *
 * What is not named is that of a healthy H100 in a fabric that is managed elsewhere (fabric_cluster 1).
 * -DOLD_DRIVER leaves the younger symbols out.
 *
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define TIMEOUT 10
#define NOT_SUPPORTED 3
#define VERSION_MISMATCH 25

#define UNCORRECTED 1
#define DRAM 2
#define SRAM 7
#define UNSIGNED_INT 1
#define UNSIGNED_LONG_LONG 3
#define RETIRED_SBE 29
#define RETIRED_DBE 30
#define RETIRED_PENDING 31
#define CRC_FLIT 38
#define CRC_DATA 45
#define LINK_RECOVERY 59
#define FAILED_RECOVERY 214
#define NVLINK_STATE 165
#define RECOVERY_ACTION 230
#define XID_CRITICAL 8

#define MEMORY_V2 0x02000028
#define SRAM_V1 0x01000068
#define MARGIN_V1 0x01000008
#define FABRIC_V2 0x02000024

typedef void *device_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned max, high, partial, low, none; } histogram_t;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned threshold; } sram_t;
typedef struct { unsigned char cluster[16]; int status; unsigned clique, state; } old_fabric_t;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state;
    unsigned health; } fabric_t;
typedef struct { device_t gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct {
    unsigned id, scope;
    long long timestamp_us, latency_us;
    int type, ret;
    union { double d; unsigned ui; unsigned long long ull; long long sll; } value;
} field_t;

static const char *find_state(void) {
    static char library[4096], path[4200];
    const char *named = getenv("FAKE_NVML");
    Dl_info here;
    if (named || path[0])
        return named ? named : path;
    if (!dladdr((void *)find_state, &here))
        return NULL;
    snprintf(library, sizeof library, "%s", here.dli_fname);
    snprintf(path, sizeof path, "%s/state", dirname(library));
    return path;
}

#define MOST_KEYS 512
static struct { char name[128], value[128]; } keys[MOST_KEYS];
static int key_count;
static struct stat known;
static int settled; /* what was read cannot be older than the file's time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Reads the file if it is another one than before; whether there is one. A file's time is too coarse to tell
 * two changes right after each other: one that was young when it was read is read again. */
static int load(void) {
    const char *path = find_state();
    struct stat now;
    if (!path || stat(path, &now))
        return 0;
    if (settled && now.st_ino == known.st_ino && now.st_size == known.st_size
        && !memcmp(&now.st_mtim, &known.st_mtim, sizeof now.st_mtim))
        return 1;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    key_count = 0;
    while (key_count < MOST_KEYS && fscanf(file, "%127s %127s", keys[key_count].name, keys[key_count].value) == 2)
        key_count++;
    fclose(file);
    known = now;
    settled = clock.tv_sec - now.st_mtim.tv_sec > 1;
    return 1;
}

/* The value of a key; -1 where the file or the key is missing. */
static long find(const char *key, char *text, size_t room) {
    long found = -1;
    pthread_mutex_lock(&lock);
    if (load())
        for (int i = 0; i < key_count; i++)
            if (!strcmp(keys[i].name, key)) {
                found = atol(keys[i].value);
                if (text)
                    snprintf(text, room, "%s", keys[i].value);
            }
    pthread_mutex_unlock(&lock);
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
    if ((value = ask(gpu, what, NULL, 0)) >= 0)
        return value;
    return (value = ask(gpu, "ret", NULL, 0)) > 0 ? value : SUCCESS;
}

#define ENTER(gpu) do { int code = enter(gpu, __func__); if (code) return code; } while (0)
#define VALUE_OR(what, usual) ({ long v = ask(gpu, what, NULL, 0); v < 0 ? (usual) : v; })
#define VALUE(what) VALUE_OR(what, 0)
/* Counts its own calls by GPU; each GPU is asked by one thread. */
#define CHANGING(what, usual) ({ \
    static int asked[64]; \
    long now = VALUE_OR(what, usual); \
    asked[(long)gpu]++ ? VALUE_OR(what ".then", now) : now; })

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    long value;
    if ((value = find("init.sleep_s", NULL, 0)) > 0)
        sleep(value);
    if ((value = find("init.ret", NULL, 0)) > 0)
        return value;
    return find("count", NULL, 0) < 0 ? DRIVER_NOT_LOADED : SUCCESS;
}

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
    if (ask(gpu, "name", text, room) < 0)
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
    (void)counter;
    ENTER(gpu);
    *value = type == UNCORRECTED ? VALUE("ecc_uncorrected") : VALUE("ecc_corrected");
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(device_t gpu, int type, int counter, int place, unsigned long long *value) {
    (void)counter;
    ENTER(gpu);
    if (type != UNCORRECTED || (place != DRAM && place != SRAM))
        return NOT_SUPPORTED;
    *value = place == DRAM ? VALUE("ecc_dram") : VALUE("ecc_sram");
    return SUCCESS;
}

int nvmlDeviceGetEccMode(device_t gpu, int *now, int *pending) {
    ENTER(gpu);
    *now = VALUE_OR("ecc", 1);
    *pending = VALUE_OR("ecc_pending", *now);
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(device_t gpu, int *value) {
    ENTER(gpu);
    *value = VALUE_OR("persistence", 1);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t gpu, unsigned *now, unsigned *pending) {
    ENTER(gpu);
    *now = *pending = VALUE("mig");
    return SUCCESS;
}

int nvmlDeviceGetSerial(device_t gpu, char *text, unsigned room) {
    ENTER(gpu);
    snprintf(text, room, "16500000%ld", (long)gpu - 1);
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(device_t gpu, unsigned *value) {
    ENTER(gpu);
    *value = VALUE_OR("pcie_width", 16);
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(device_t gpu, unsigned *value) {
    ENTER(gpu);
    *value = VALUE_OR("pcie_width_max", 16);
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(device_t gpu, unsigned *value) {
    ENTER(gpu);
    *value = VALUE_OR("pcie_generation_max", 5);
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(device_t gpu, unsigned *value) {
    ENTER(gpu);
    *value = VALUE("pcie_replays");
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(device_t gpu, int threshold, unsigned *value) {
    (void)threshold;
    ENTER(gpu);
    *value = VALUE_OR("slowdown_c", 87);
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

/* The fields: each entry has a return code of its own, and the call succeeds if any entry did. */
static int read_field(device_t gpu, field_t *field) {
    char what[64];
    long value;
    snprintf(what, sizeof what, "field.%u.ret", field->id);
    if ((value = ask(gpu, what, NULL, 0)) > 0)
        return value;
    field->type = UNSIGNED_INT;
    field->value.ull = ~0ULL; /* what a reader of the wrong member gets */
    switch (field->id) {
    case RECOVERY_ACTION:
        field->value.ui = VALUE("recovery_action");
        return SUCCESS;
    case NVLINK_STATE:
        if (field->scope >= (unsigned)VALUE_OR("links", 18))
            return INVALID_ARGUMENT;
        snprintf(what, sizeof what, "link.%u", field->scope);
        field->value.ui = VALUE_OR(what, 1);
        return SUCCESS;
    case RETIRED_SBE:
    case RETIRED_DBE:
    case RETIRED_PENDING:
        if ((value = ask(gpu, field->id == RETIRED_PENDING ? "retire_pending" : "retired_pages", NULL, 0)) < 0)
            return NOT_SUPPORTED;
        field->type = UNSIGNED_LONG_LONG;
        field->value.ull = field->id == RETIRED_SBE ? 0 : value;
        return SUCCESS;
    case CRC_FLIT:
    case CRC_DATA:
    case LINK_RECOVERY:
    case FAILED_RECOVERY:
        field->type = UNSIGNED_LONG_LONG;
        field->value.ull = VALUE(field->id == CRC_FLIT ? "nvlink_crc"
                                 : field->id == CRC_DATA ? "nvlink_data_crc" : "nvlink_recoveries");
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(device_t gpu, int count, field_t *fields) {
    ENTER(gpu);
    int any = 0;
    for (int i = 0; i < count; i++) {
        fields[i].ret = read_field(gpu, &fields[i]);
        any |= fields[i].ret == SUCCESS;
    }
    return any ? SUCCESS : fields[0].ret;
}

/* Xid events. A wait lasts 0.1 s at most, whatever was asked for. */
static long told;
static unsigned long registered;

int nvmlEventSetCreate(void **set) {
    *set = &told;
    told = find("events", NULL, 0); /* only what comes after the registration */
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device_t gpu, unsigned long long *types) {
    ENTER(gpu);
    *types = VALUE_OR("event_types", XID_CRITICAL);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t gpu, unsigned long long types, void *set) {
    (void)set;
    ENTER(gpu);
    if (types & ~(unsigned long long)VALUE_OR("event_types", XID_CRITICAL))
        return NOT_SUPPORTED;
    registered |= 1UL << (long)gpu;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    long code, newest;
    if ((code = find("event.ret", NULL, 0)) > 0)
        return code;
    usleep(100000);
    if ((newest = find("events", NULL, 0)) <= told)
        return TIMEOUT;
    long count = find("count", NULL, 0);
    for (long number = 1; number <= count; number++) {
        device_t gpu = (device_t)number;
        if (registered & 1UL << number && (code = ask(gpu, "event", NULL, 0)) > 0) {
            told = newest;
            *event = (event_t){gpu, XID_CRITICAL, code, ~0U, ~0U};
            return SUCCESS;
        }
    }
    return TIMEOUT;
}

#ifdef OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t gpu, unsigned long long *value) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(device_t gpu, unsigned long long *value) {
#endif
    ENTER(gpu);
    *value = CHANGING("clock_limits", 0);
    return SUCCESS;
}

#ifdef OLD_DRIVER
int nvmlDeviceGetGpuFabricInfo(device_t gpu, old_fabric_t *value) {
    ENTER(gpu);
    value->state = CHANGING("fabric_state", 3);
    value->status = VALUE("fabric_status");
    return SUCCESS;
}
#else
int nvmlDeviceGetMemoryInfo_v2(device_t gpu, memory_v2_t *value) {
    ENTER(gpu);
    if (value->version != MEMORY_V2)
        return VERSION_MISMATCH;
    value->total = 80ULL << 30;
    value->reserved = 600ULL << 20;
    value->used = (unsigned long long)VALUE("used_mib") << 20;
    value->free = value->total - value->used - value->reserved;
    return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(device_t gpu, histogram_t *value) {
    ENTER(gpu);
    *value = (histogram_t){640, 0, 0, 0, VALUE("remap_exhausted")};
    value->max -= value->none;
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(device_t gpu, sram_t *value) {
    ENTER(gpu);
    if (value->version != SRAM_V1)
        return VERSION_MISMATCH;
    value->threshold = VALUE("sram_threshold");
    return SUCCESS;
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t gpu, unsigned *value) {
    ENTER(gpu);
    value[1] = VALUE("unrepairable");
    return SUCCESS;
}

int nvmlDeviceGetMarginTemperature(device_t gpu, int *value) {
    ENTER(gpu);
    if ((unsigned)value[0] != MARGIN_V1)
        return VERSION_MISMATCH;
    value[1] = VALUE_OR("margin_c", 40);
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(device_t gpu, fabric_t *value) {
    ENTER(gpu);
    if (value->version != FABRIC_V2)
        return VERSION_MISMATCH;
    value->state = CHANGING("fabric_state", 3);
    value->status = VALUE("fabric_status");
    memset(value->cluster, 0, sizeof value->cluster);
    value->cluster[0] = VALUE_OR("fabric_cluster", 1);
    value->health = VALUE_OR("fabric_health", 0x1aa); /* every fault false, the configuration right */
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t gpu, unsigned *count, process_t *processes) {
    ENTER(gpu);
    unsigned room = *count;
    long pid = room ? VALUE("pid") : CHANGING("pid", 0);
    *count = pid > 0;
    if (!pid)
        return SUCCESS;
    if (!room)
        return INSUFFICIENT_SIZE;
    processes[0] = (process_t){pid, (unsigned long long)VALUE("used_mib") << 20, 0, 0};
    return SUCCESS;
}
#endif
