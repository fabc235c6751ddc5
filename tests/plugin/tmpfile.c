/* An example of a transport outside Kolo: mapped links between processes of one user, by /proc/<pid>/fd/<fd>. It needs
 * no thread and no socket: the file system hands the memory over. transports/README.md walks through it.
 *
 * Thread safety: as the table demands. There is no state but the devices.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <kolo/transport.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
  unsigned char processId[16];
  unsigned char hostId[16];
  uint64_t check;
} Address;

typedef struct {
  unsigned char processId[16];
  uint64_t address; /* meaningful in the same process only */
  uint64_t bytes;
  uint64_t fdOffset;
  uint64_t inode; /* a closed descriptor's number is soon another file's */
  int32_t pid;
  int32_t fd; /* -1: ordinary memory */
  uint64_t check;
} Descriptor;

typedef struct {
  unsigned char communicator[32];
  Address address;
} Device;

typedef struct {
  void* base; /* NULL in the same process */
  size_t length;
} Link;

/* Writes the line that the core shows, and returns the code. */
static int fail(char* why, size_t whyBytes, int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, whyBytes, format, arguments);
  va_end(arguments);
  return code;
}

static uint64_t hash(uint64_t state, const void* data, size_t bytes) {
  const unsigned char* at = data;
  for (size_t i = 0; i < bytes; ++i) state = (state ^ at[i]) * UINT64_C(1099511628211);
  return state;
}

/* FNV-1a over the communicator's secret and the blob: tells mistakes (another communicator, garbage) from the real
 * thing. Against an attacker a transport needs a MAC; here the kernel's permissions on /proc/<pid>/fd do that part. */
static uint64_t checkOf(const Device* device, const void* blob, size_t bytes) {
  const uint64_t seed = hash(UINT64_C(14695981039346656037), device->communicator, sizeof device->communicator);
  return hash(seed, blob, bytes);
}

static int probe(char* why, size_t whyBytes) {
  if (access("/proc/self/fd", R_OK | X_OK) == 0) return KOLO_TRANSPORT_OK;
  return fail(why, whyBytes, KOLO_TRANSPORT_UNREACHABLE, "/proc/self/fd: %s; mount /proc", strerror(errno));
}

static int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* why,
                      size_t whyBytes) {
  if (host->size < sizeof *host) return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "koloTransportHost is too short");
  Device* device = calloc(1, sizeof *device);
  if (device == NULL) return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "out of memory");
  memcpy(device->communicator, host->communicator, sizeof device->communicator);
  memcpy(device->address.processId, host->processId, sizeof host->processId);
  memcpy(device->address.hostId, host->hostId, sizeof host->hostId);
  device->address.check = checkOf(device, &device->address, offsetof(Address, check));
  address->bytes = sizeof device->address;
  memcpy(address->data, &device->address, sizeof device->address);
  *opened = device;
  return KOLO_TRANSPORT_OK;
}

static void deviceClose(void* opened) { free(opened); }

static int memoryRegister(void* opened, const koloTransportMemory* range, void** memory, koloTransportBlob* blob,
                          char* why, size_t whyBytes) {
  const Device* device = opened;
  if (range->size < sizeof *range || range->address == NULL || range->bytes == 0) {
    return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "expected a range of at least one byte");
  }
  Descriptor descriptor;
  memset(&descriptor, 0, sizeof descriptor);
  memcpy(descriptor.processId, device->address.processId, sizeof descriptor.processId);
  descriptor.address = (uint64_t)(uintptr_t)range->address;
  descriptor.bytes = range->bytes;
  descriptor.fdOffset = range->fdOffset;
  descriptor.pid = (int32_t)getpid();
  descriptor.fd = range->fd;
  if (range->fd >= 0) {
    struct stat info;
    if (fstat(range->fd, &info) != 0) return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "fstat: %s", strerror(errno));
    descriptor.inode = info.st_ino;
  }
  descriptor.check = checkOf(device, &descriptor, offsetof(Descriptor, check));
  blob->bytes = sizeof descriptor;
  memcpy(blob->data, &descriptor, sizeof descriptor);
  *memory = NULL; /* nothing to undo: the core keeps the file open while the memory is registered */
  return KOLO_TRANSPORT_OK;
}

static void memoryDeregister(void* opened, void* memory) {
  (void)opened;
  (void)memory;
}

/* Maps the exporter's file, from the page below the range on: mmap takes no other offsets. */
static int mapFile(const Descriptor* peer, Link* link, void** mapped, char* why, size_t whyBytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)peer->pid, (int)peer->fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    /* EACCES: another user, or ptrace is restricted. Either way another transport may do better. */
    const int code = errno == EACCES || errno == EPERM ? KOLO_TRANSPORT_UNREACHABLE : KOLO_TRANSPORT_ERROR;
    return fail(why, whyBytes, code, "%s: %s", path, strerror(errno));
  }
  struct stat info;
  const int seals = fcntl(fd, F_GET_SEALS); /* a file that may shrink would kill who touches what is gone (SIGBUS) */
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &info) != 0 || info.st_ino != peer->inode ||
      (uint64_t)info.st_size < peer->fdOffset || (uint64_t)info.st_size - peer->fdOffset < peer->bytes) {
    close(fd);
    return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "%s is no longer the registered memory", path);
  }
  const uint64_t below = peer->fdOffset / (uint64_t)sysconf(_SC_PAGESIZE) * (uint64_t)sysconf(_SC_PAGESIZE);
  link->length = (size_t)(peer->bytes + peer->fdOffset - below);
  void* const base = mmap(NULL, link->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)below);
  const int errnum = errno;
  close(fd); /* the mapping holds the memory, also when the exporter is gone */
  if (base == MAP_FAILED) return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "mmap: %s", strerror(errnum));
  link->base = base;
  *mapped = (unsigned char*)base + (peer->fdOffset - below);
  return KOLO_TRANSPORT_OK;
}

static int readPeer(const Device* device, const koloTransportBlob* address, const koloTransportBlob* memory,
                    Address* peer, Descriptor* descriptor) {
  if (address->bytes != sizeof *peer || memory->bytes != sizeof *descriptor) return 0;
  memcpy(peer, address->data, sizeof *peer);
  memcpy(descriptor, memory->data, sizeof *descriptor);
  return peer->check == checkOf(device, peer, offsetof(Address, check)) &&
         descriptor->check == checkOf(device, descriptor, offsetof(Descriptor, check)) &&
         memcmp(peer->processId, descriptor->processId, sizeof peer->processId) == 0;
}

static int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
                    void** linked, void** mapped, uint64_t* bytes, char* why, size_t whyBytes) {
  const Device* device = opened;
  Address peer;
  Descriptor descriptor;
  if (!readPeer(device, peerAddress, peerMemory, &peer, &descriptor)) {
    return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "the blobs are damaged, or come from another communicator");
  }
  const int here = memcmp(peer.processId, device->address.processId, sizeof peer.processId) == 0;
  if (!here && memcmp(peer.hostId, device->address.hostId, sizeof peer.hostId) != 0) {
    return fail(why, whyBytes, KOLO_TRANSPORT_UNREACHABLE, "process %d runs on another machine", (int)descriptor.pid);
  }
  if (!here && descriptor.fd < 0) {
    return fail(why, whyBytes, KOLO_TRANSPORT_UNSHAREABLE, "ordinary memory of process %d", (int)descriptor.pid);
  }
  Link* link = calloc(1, sizeof *link);
  if (link == NULL) return fail(why, whyBytes, KOLO_TRANSPORT_ERROR, "out of memory");
  int code = KOLO_TRANSPORT_OK;
  if (here) {
    *mapped = (void*)(uintptr_t)descriptor.address;
  } else {
    code = mapFile(&descriptor, link, mapped, why, whyBytes);
  }
  if (code != KOLO_TRANSPORT_OK) {
    free(link);
    return code;
  }
  *linked = link;
  *bytes = descriptor.bytes; /* mapFile has found so many; in this process, the peer's own number */
  return KOLO_TRANSPORT_OK;
}

static void linkClose(void* opened, void* linked) {
  (void)opened;
  Link* link = linked;
  if (link->base != NULL) munmap(link->base, link->length);
  free(link);
}

__attribute__((visibility("default"))) const koloTransport* koloTransportEntry(void) {
  static const koloTransport table = {
      .abi = KOLO_TRANSPORT_ABI,
      .size = sizeof(koloTransport),
      .name = "tmpfile",
      .linkKind = koloLinkMapped,
      .probe = probe,
      .deviceOpen = deviceOpen,
      .deviceClose = deviceClose,
      .memoryRegister = memoryRegister,
      .memoryDeregister = memoryDeregister,
      .linkOpen = linkOpen,
      .linkClose = linkClose,
      .linkRead = NULL, /* optional */
      .memoryKind = koloMemoryHost,
  };
  return &table;
}
