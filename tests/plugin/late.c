/* A transport with posted links between threads of one process, which does everything as late, and in as odd an order,
 * as the contract allows: it carries out a request in some later call of deviceProgress or none but the last, reads
 * `from` only then, keeps no order between rails, and is busy often. Ranks of one "host", KOLO_TEST_LATE_PER_HOST of
 * them in a row, or those whose numbers differ by multiples of KOLO_TEST_LATE_HOSTS, do not reach each other by it. The
 * links of a rank that koloLateLose() names are lost. What koloLateHold() names waits for koloLateCarryOut(), as what a
 * NIC does waits for nobody. The call that koloLateFail() counts to fails. The links of a rank that koloLateStall()
 * names are not there after all the time that a link may take. Two threads in one device, which the contract forbids,
 * end the program. Built with LOSSY, each of its links is lost after some requests,
 * KOLO_TEST_LATE_LOSES of them at most; what was under way then may still arrive, until the peer abandons its end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <kolo/transport.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef LOSSY
enum { kIsLossy = 1 };
#define NAME "lossy"
#else
enum { kIsLossy = 0 };
#define NAME "late"
#endif
enum { kRails = 2, kMostQueued = 5, kMostRanks = 64 };

/* Memory that peers may still have requests for. Readers at once, and no order between them that a sanitizer would take
 * for one of Kolo's. */
typedef struct Memory {
  unsigned char* begin;
  uint64_t bytes;
  uint64_t id;
  struct Device* owner;
  struct Memory* next;
} Memory;
static pthread_rwlock_t memoriesLock = PTHREAD_RWLOCK_INITIALIZER;
static Memory* memories;
static uint64_t memoryIds;

/* Rank whose links are lost, and to which all are; -1: none. */
static int lostRank = -1;
__attribute__((visibility("default"))) void koloLateLose(int rank);
void koloLateLose(int rank) { __atomic_store_n(&lostRank, rank, __ATOMIC_RELAXED); }

/* Calls of deviceProgress so far. */
static unsigned long calls;
__attribute__((visibility("default"))) unsigned long koloLateCalls(void);
unsigned long koloLateCalls(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }

/* Bytes put by a key: straight to where a user wants them. */
static unsigned long straightBytes;
__attribute__((visibility("default"))) unsigned long koloLateStraightBytes(void);
unsigned long koloLateStraightBytes(void) { return __atomic_load_n(&straightBytes, __ATOMIC_RELAXED); }

/* How long registering and deregistering memory and opening a link take, in milliseconds: long enough for another
 * thread to come in between. */
static int lingerMs;
__attribute__((visibility("default"))) void koloLateLinger(int ms);
void koloLateLinger(int ms) { __atomic_store_n(&lingerMs, ms, __ATOMIC_RELAXED); }

/* Rank whose requests by a key are carried out by koloLateCarryOut() alone; -1: none. */
static int heldRank = -1;
__attribute__((visibility("default"))) void koloLateHold(int rank);
void koloLateHold(int rank) { __atomic_store_n(&heldRank, rank, __ATOMIC_RELAXED); }

/* The call that fails, and its code. Calls are those of a rank's devices that make something, from 1 on. */
static int failingRank = -1, failsIn, failingCode;
__attribute__((visibility("default"))) void koloLateFail(int rank, int call, int code);
void koloLateFail(int rank, int call, int code) {
  __atomic_store_n(&failingCode, code, __ATOMIC_RELAXED);
  __atomic_store_n(&failsIn, call, __ATOMIC_RELAXED);
  __atomic_store_n(&failingRank, rank, __ATOMIC_RELAXED);
}
/* Whether it has failed; no other will. */
__attribute__((visibility("default"))) int koloLateHasFailed(void);
int koloLateHasFailed(void) {
  __atomic_store_n(&failingRank, -1, __ATOMIC_RELAXED);
  return __atomic_load_n(&failsIn, __ATOMIC_RELAXED) <= 0;
}

static int tryCall(int rank, char* why, size_t whyBytes) {
  if (rank != __atomic_load_n(&failingRank, __ATOMIC_RELAXED)) return KOLO_TRANSPORT_OK;
  if (__atomic_sub_fetch(&failsIn, 1, __ATOMIC_RELAXED) != 0) return KOLO_TRANSPORT_OK;
  snprintf(why, whyBytes, "a fault of rank %d that a test wants", rank);
  return __atomic_load_n(&failingCode, __ATOMIC_RELAXED);
}

/* Rank that reaches nobody, and waits for that as long as it may; -1: none. */
static int stalledRank = -1;
__attribute__((visibility("default"))) void koloLateStall(int rank);
void koloLateStall(int rank) { __atomic_store_n(&stalledRank, rank, __ATOMIC_RELAXED); }

typedef struct Link {
  struct Device* device;
  int peer;
  uint64_t memory;
  int isLost;
  uint64_t left; /* requests until it is */
  koloTransportPut queue[kRails][kMostQueued];
  koloTransportKey keys[kRails][kMostQueued];
  int queued[kRails];
  struct Link* next;
} Link;

/* A request that is under way by a lost link. */
typedef struct Stray {
  uint64_t memory, linkMemory;
  koloTransportPut put;
  struct Stray* next;
  unsigned char bytes[];
} Stray;

typedef struct Device {
  int rank, perHost, hosts, timeoutMs;
  int isInUse;
  int hasFailed; /* abandoned, by its own rank; under memoriesLock */
  struct Device* next;
  uint64_t random;
  Link* links;
  Stray* strays;
  int abandoned[kMostRanks]; /* peers from whom nothing arrives any more; under memoriesLock */
  unsigned char processId[16];
} Device;
static Device* devices; /* under memoriesLock */

typedef struct {
  unsigned char processId[16];
  int32_t rank;
} Address;

/* Around what a thread does with a device. No order between threads for a sanitizer here either. */
static void enter(Device* device) {
  if (__atomic_exchange_n(&device->isInUse, 1, __ATOMIC_RELAXED) == 0) return;
  fprintf(stderr, NAME ": two threads are in the device of rank %d\n", device->rank);
  abort();
}

static void enterForLong(Device* device) {
  const int ms = __atomic_load_n(&lingerMs, __ATOMIC_RELAXED);
  const struct timespec nap = {ms / 1000, ms % 1000 * 1000000L};
  enter(device);
  if (ms > 0) nanosleep(&nap, NULL);
}

static void leave(Device* device) { __atomic_store_n(&device->isInUse, 0, __ATOMIC_RELAXED); }

static uint64_t draw(Device* device) {
  device->random ^= device->random << 13;
  device->random ^= device->random >> 7;
  device->random ^= device->random << 17;
  return device->random >> 11;
}

static int isCut(const Link* link) {
  const int rank = __atomic_load_n(&lostRank, __ATOMIC_RELAXED);
  return rank >= 0 && (link->peer == rank || link->device->rank == rank);
}

static uint64_t losesAfter(void) {
  const char* most = getenv("KOLO_TEST_LATE_LOSES");
  return most != NULL && atoi(most) > 0 ? (uint64_t)atoi(most) : 1000;
}

static int probe(char* why, size_t whyBytes) {
  (void)why, (void)whyBytes;
  return KOLO_TRANSPORT_OK;
}

static int hostOf(const Device* device, int rank) {
  return device->hosts > 0 ? rank % device->hosts : rank / device->perHost;
}

static int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* why,
                      size_t whyBytes) {
  const int outcome = tryCall(host->rank, why, whyBytes);
  Device* device = outcome == KOLO_TRANSPORT_OK ? calloc(1, sizeof *device) : NULL;
  const char *perHost = getenv("KOLO_TEST_LATE_PER_HOST"), *hosts = getenv("KOLO_TEST_LATE_HOSTS");
  Address mine;
  if (outcome != KOLO_TRANSPORT_OK) return outcome;
  if (device == NULL) return snprintf(why, whyBytes, "out of memory"), KOLO_TRANSPORT_ERROR;
  device->rank = host->rank;
  device->timeoutMs = host->timeoutMs;
  device->perHost = perHost != NULL ? atoi(perHost) : 1;
  device->hosts = hosts != NULL ? atoi(hosts) : 0;
  device->random = 88172645463325252u + 7919u * (uint64_t)host->rank;
  memcpy(device->processId, host->processId, sizeof device->processId);
  memset(&mine, 0, sizeof mine);
  memcpy(mine.processId, host->processId, sizeof mine.processId);
  mine.rank = host->rank;
  memcpy(address->data, &mine, sizeof mine);
  address->bytes = sizeof mine;
  pthread_rwlock_wrlock(&memoriesLock);
  device->next = devices;
  devices = device;
  pthread_rwlock_unlock(&memoriesLock);
  *opened = device;
  return KOLO_TRANSPORT_OK;
}

static void forgetStrays(Device* device) {
  while (device->strays != NULL) {
    Stray* stray = device->strays;
    device->strays = stray->next;
    free(stray);
  }
}

static void deviceClose(void* opened) {
  Device* device = opened;
  pthread_rwlock_wrlock(&memoriesLock);
  for (Device** at = &devices; *at != NULL; at = &(*at)->next) {
    if (*at != device) continue;
    *at = device->next;
    break;
  }
  pthread_rwlock_unlock(&memoriesLock);
  forgetStrays(device);
  free(device);
}

static int memoryRegister(void* opened, const koloTransportMemory* range, void** registered,
                          koloTransportBlob* descriptor, char* why, size_t whyBytes) {
  const int outcome = tryCall(((Device*)opened)->rank, why, whyBytes);
  Memory* memory = outcome == KOLO_TRANSPORT_OK ? calloc(1, sizeof *memory) : NULL;
  if (outcome != KOLO_TRANSPORT_OK) return outcome;
  if (memory == NULL) return snprintf(why, whyBytes, "out of memory"), KOLO_TRANSPORT_ERROR;
  enterForLong(opened);
  memory->owner = opened;
  memory->begin = range->address;
  memory->bytes = range->bytes;
  pthread_rwlock_wrlock(&memoriesLock);
  memory->id = ++memoryIds;
  memory->next = memories;
  memories = memory;
  pthread_rwlock_unlock(&memoriesLock);
  memcpy(descriptor->data, &memory->id, sizeof memory->id);
  descriptor->bytes = sizeof memory->id;
  *registered = memory;
  leave(opened);
  return KOLO_TRANSPORT_OK;
}

static void memoryDeregister(void* opened, void* registered) {
  enterForLong(opened);
  pthread_rwlock_wrlock(&memoriesLock);
  for (Memory** at = &memories; *at != NULL; at = &(*at)->next) {
    if (*at != registered) continue;
    *at = (*at)->next;
    break;
  }
  pthread_rwlock_unlock(&memoriesLock);
  free(registered);
  leave(opened);
}

static int memoryKey(void* opened, void* registered, koloTransportKey* key, char* why, size_t whyBytes) {
  (void)opened, (void)why, (void)whyBytes;
  memset(key, 0, sizeof *key);
  memcpy(key->data, &((Memory*)registered)->id, sizeof(uint64_t));
  return KOLO_TRANSPORT_OK;
}

static int stall(const Device* device, char* why, size_t whyBytes) {
  const struct timespec nap = {device->timeoutMs / 1000, device->timeoutMs % 1000 * 1000000L};
  if (__atomic_load_n(&stalledRank, __ATOMIC_RELAXED) != device->rank) return KOLO_TRANSPORT_OK;
  nanosleep(&nap, NULL);
  return snprintf(why, whyBytes, "no answer in %d ms", device->timeoutMs), KOLO_TRANSPORT_UNREACHABLE;
}

static int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
                    void** linked, void** mapped, uint64_t* bytes, char* why, size_t whyBytes) {
  Device* device = opened;
  Address peer;
  Link* link;
  int outcome = tryCall(device->rank, why, whyBytes);
  if (outcome == KOLO_TRANSPORT_OK) outcome = stall(device, why, whyBytes);
  if (outcome != KOLO_TRANSPORT_OK) return outcome;
  memcpy(&peer, peerAddress->data, sizeof peer);
  if (memcmp(peer.processId, device->processId, sizeof peer.processId) != 0 ||
      hostOf(device, peer.rank) == hostOf(device, device->rank)) {
    return snprintf(why, whyBytes, "rank %d counts as one of this host, or is another process", peer.rank),
           KOLO_TRANSPORT_UNREACHABLE;
  }
  link = calloc(1, sizeof *link);
  if (link == NULL) return snprintf(why, whyBytes, "out of memory"), KOLO_TRANSPORT_ERROR;
  enterForLong(device);
  memcpy(&link->memory, peerMemory->data, sizeof link->memory);
  link->device = device;
  link->peer = peer.rank;
  link->left = kIsLossy ? draw(device) % losesAfter() : 0;
  link->next = device->links;
  device->links = link;
  *mapped = NULL;
  *linked = link;
  pthread_rwlock_rdlock(&memoriesLock);
  *bytes = 0;
  for (const Memory* memory = memories; memory != NULL; memory = memory->next) {
    if (memory->id == link->memory) *bytes = memory->bytes;
  }
  pthread_rwlock_unlock(&memoriesLock);
  leave(device);
  return KOLO_TRANSPORT_OK;
}

/* NULL: its owner has gone, or has abandoned the sender. */
static unsigned char* find(const Device* from, uint64_t id, uint64_t offset, uint64_t bytes) {
  for (Memory* memory = memories; memory != NULL; memory = memory->next) {
    if (memory->id != id) continue;
    if (memory->owner->abandoned[from->rank] || memory->owner->hasFailed) return NULL;
    if (offset + bytes <= memory->bytes) return memory->begin + offset;
    fprintf(stderr, "late: %llu bytes at %llu are outside of a memory of %llu\n", (unsigned long long)bytes,
            (unsigned long long)offset, (unsigned long long)memory->bytes);
    abort();
  }
  return NULL;
}

/* A word alone is there in one piece for the rank that makes progress, which here another rank's thread writes. */
static void place(unsigned char* to, const koloTransportPut* put) {
  uint64_t word;
  if (put->bytes != sizeof word || (uintptr_t)to % sizeof word != 0) {
    memcpy(to, put->from, put->bytes);
    return;
  }
  memcpy(&word, put->from, sizeof word);
  __atomic_store_n((uint64_t*)to, word, __ATOMIC_RELEASE);
}

static void deliver(const Device* device, uint64_t memory, uint64_t linkMemory, const koloTransportPut* put) {
  unsigned char* to;
  uint64_t* word;
  pthread_rwlock_rdlock(&memoriesLock);
  to = find(device, memory, put->to, put->bytes);
  /* What a rank repeats is what its peer may just be reading. */
  if (to != NULL && put->bytes != 0 && memcmp(to, put->from, put->bytes) != 0) place(to, put);
  word = put->signalTo != KOLO_TRANSPORT_NO_SIGNAL ? (uint64_t*)find(device, linkMemory, put->signalTo, 8) : NULL;
  if (word != NULL) __atomic_store_n(word, put->signal, __ATOMIC_RELEASE); /* [signal] after the bytes above */
  pthread_rwlock_unlock(&memoriesLock);
}

static uint64_t memoryOf(const Link* link, uint32_t rail, int place) {
  uint64_t memory = link->memory;
  if (link->queue[rail][place].key != NULL) memcpy(&memory, link->keys[rail][place].data, sizeof memory);
  return memory;
}

/* The oldest request of a rail. */
static void carryOut(Link* link, uint32_t rail) {
  deliver(link->device, memoryOf(link, rail, 0), link->memory, &link->queue[rail][0]);
  --link->queued[rail];
  memmove(link->queue[rail], link->queue[rail] + 1, (size_t)link->queued[rail] * sizeof *link->queue[rail]);
  memmove(link->keys[rail], link->keys[rail] + 1, (size_t)link->queued[rail] * sizeof *link->keys[rail]);
}

static void lose(Link* link) {
  Stray** end = &link->device->strays;
  if (link->isLost) return;
  link->isLost = 1;
  while (*end != NULL) end = &(*end)->next;
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    for (int i = 0; i < link->queued[rail]; ++i) {
      const koloTransportPut* put = &link->queue[rail][i];
      Stray* stray = malloc(sizeof *stray + put->bytes);
      if (stray == NULL) abort();
      stray->memory = memoryOf(link, rail, i);
      stray->linkMemory = link->memory;
      stray->put = *put;
      if (put->bytes != 0) memcpy(stray->bytes, put->from, put->bytes);
      stray->put.from = stray->bytes;
      stray->next = NULL;
      *end = stray;
      end = &stray->next;
    }
    link->queued[rail] = 0;
  }
}

static void linkAbandon(void* opened, void* linked) {
  Device* device = opened;
  Link* link = linked;
  enter(device);
  lose(link);
  pthread_rwlock_wrlock(&memoriesLock);
  device->abandoned[link->peer] = 1;
  pthread_rwlock_unlock(&memoriesLock);
  leave(device);
}

static void deviceAbandon(void* opened) {
  Device* device = opened;
  enter(device);
  pthread_rwlock_wrlock(&memoriesLock);
  device->hasFailed = 1;
  pthread_rwlock_unlock(&memoriesLock);
  for (Link* link = device->links; link != NULL; link = link->next) {
    for (uint32_t rail = 0; rail < kRails; ++rail) link->queued[rail] = 0;
    link->isLost = 1;
  }
  forgetStrays(device);
  leave(device);
}

/* What a rank has put, as by a NIC: whatever its threads do meanwhile, but for calls of the device. Not while it opens
 * or closes links. */
__attribute__((visibility("default"))) void koloLateCarryOut(int rank);
void koloLateCarryOut(int rank) {
  /* Others may be opened and closed meanwhile: the list is read under its lock, which carrying out takes itself. */
  Device* ofRank[kMostRanks];
  int found = 0;
  pthread_rwlock_rdlock(&memoriesLock);
  for (Device* device = devices; device != NULL && found < kMostRanks; device = device->next) {
    if (device->rank == rank) ofRank[found++] = device;
  }
  pthread_rwlock_unlock(&memoriesLock);
  for (int i = 0; i < found; ++i) {
    Device* const device = ofRank[i];
    enter(device);
    for (Link* link = device->links; link != NULL; link = link->next) {
      for (uint32_t rail = 0; rail < kRails; ++rail) {
        while (link->queued[rail] > 0) carryOut(link, rail);
      }
    }
    leave(device);
  }
}

static void linkClose(void* opened, void* linked) {
  Link* link = linked;
  Device* device = opened;
  enter(device);
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    while (link->queued[rail] > 0) carryOut(link, rail);
  }
  for (Link** at = &device->links; *at != NULL; at = &(*at)->next) {
    if (*at != link) continue;
    *at = link->next;
    break;
  }
  free(link);
  leave(device);
}

static uint32_t linkRails(void* opened, void* linked) {
  (void)opened, (void)linked;
  return kRails;
}

static int stateOf(const Link* link, char* why, size_t whyBytes) {
  if (isCut(link))
    return snprintf(why, whyBytes, "the test has cut the link to rank %d", link->peer), KOLO_TRANSPORT_LOST;
  if (link->isLost) return snprintf(why, whyBytes, "lost, as it was to be"), KOLO_TRANSPORT_LOST;
  return KOLO_TRANSPORT_OK;
}

static int linkState(void* opened, void* linked, char* why, size_t whyBytes) {
  int state;
  enter(opened);
  state = stateOf(linked, why, whyBytes);
  leave(opened);
  return state;
}

static int take(Link* link, const koloTransportPut* put, char* why, size_t whyBytes) {
  int* queued = &link->queued[put->rail];
  if (kIsLossy && !link->isLost && link->left-- == 0) lose(link);
  if (stateOf(link, why, whyBytes) != KOLO_TRANSPORT_OK) return KOLO_TRANSPORT_LOST;
  if (*queued == kMostQueued || draw(link->device) % 4 == 0)
    return snprintf(why, whyBytes, "busy"), KOLO_TRANSPORT_BUSY;
  link->queue[put->rail][*queued] = *put;
  if (put->key != NULL) link->keys[put->rail][*queued] = *put->key;
  if (put->key != NULL) __atomic_fetch_add(&straightBytes, (unsigned long)put->bytes, __ATOMIC_RELAXED);
  ++*queued;
  return KOLO_TRANSPORT_OK;
}

static int linkPut(void* opened, void* linked, const koloTransportPut* put, char* why, size_t whyBytes) {
  int taken;
  enter(opened);
  taken = take(linked, put, why, whyBytes);
  leave(opened);
  return taken;
}

static uint64_t linkQueued(void* opened, void* linked) {
  const Link* link = linked;
  uint64_t urgent = 0;
  enter(opened);
  for (uint32_t rail = 0; rail < kRails && !isCut(link); ++rail) {
    for (int i = 0; i < link->queued[rail]; ++i) urgent += link->queue[rail][i].more != KOLO_TRANSPORT_LATER;
  }
  leave(opened);
  return urgent;
}

static int deviceProgress(void* opened, int peer, int waitUs) {
  Device* device = opened;
  int moved = 0;
  (void)peer;
  enter(device);
  __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
  for (Link* link = device->links; link != NULL; link = link->next) {
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      const int isHeld = link->queued[rail] != 0 && link->queue[rail][0].key != NULL &&
                         __atomic_load_n(&heldRank, __ATOMIC_RELAXED) == device->rank;
      if (link->queued[rail] == 0 || isHeld || isCut(link) || draw(device) % 3 == 0) continue;
      carryOut(link, rail);
      moved = 1;
    }
  }
  if (device->strays != NULL && draw(device) % 8 == 0) {
    Stray* stray = device->strays;
    device->strays = stray->next;
    deliver(device, stray->memory, stray->linkMemory, &stray->put);
    free(stray);
  }
  leave(device);
  if (moved == 0 && waitUs > 0) sched_yield(); /* the others may share this core */
  return moved;
}

__attribute__((visibility("default"))) const koloTransport* koloTransportEntry(void) {
  static const koloTransport table = {
      .abi = KOLO_TRANSPORT_ABI,
      .size = sizeof(koloTransport),
      .name = NAME,
      .linkKind = koloLinkPosted,
      .probe = probe,
      .deviceOpen = deviceOpen,
      .deviceClose = deviceClose,
      .memoryRegister = memoryRegister,
      .memoryDeregister = memoryDeregister,
      .linkOpen = linkOpen,
      .linkClose = linkClose,
      .memoryKind = koloMemoryHost,
      .memoryKey = memoryKey,
      .linkRails = linkRails,
      .linkPut = linkPut,
      .linkUnfinished = linkQueued,
      .linkQueued = linkQueued,
      .linkState = linkState,
      .deviceProgress = deviceProgress,
      .registersCheaply = !kIsLossy,
      .deviceAbandon = deviceAbandon,
      .linkAbandon = linkAbandon,
  };
  return &table;
}
