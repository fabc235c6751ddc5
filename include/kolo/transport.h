/* The contract between Kolo and a transport, for people who write one. See transports/README.md for a walk through.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A transport makes links and does nothing else. A link is the right to put bytes into memory of one peer. There are
 * two kinds. A mapped link is a pointer through which this process loads and stores the peer's memory. A posted link
 * takes requests, each of which copies bytes into the peer's memory and then sets a 64-bit signal there. The table is
 * C, sized and versioned; a transport may be compiled in or be a shared object that exports
 *
 *     const koloTransport* koloTransportEntry(void);
 *
 * and is named, by path, in KOLO_TRANSPORT_PLUGINS.
 *
 * Life of the three nouns, which every transport uses:
 *   device  what this process opens once for each communicator rank; its address blob is sent to all peers
 *   memory  a range of this process's memory made reachable; its descriptor blob is sent to the peers
 *   link    made from a peer's address and one of its descriptors
 *
 * Thread safety: the core calls one device from one thread at a time, but for what sharesLinks allows; different
 * devices concurrently. Peers may open links to a registered memory at any time until it is deregistered, so a
 * transport that must answer them needs its own thread. That thread makes connections only: what peers put into this
 * process's memory may appear there only while the core is in a call of this device, or be put there by hardware at any
 * time. Errors: functions return KOLO_TRANSPORT_OK or another code and then write one line to `why` (at most whyBytes,
 * always terminated): what was wrong and what was expected. Nothing may block for longer than host->timeoutMs.
 */
#ifndef KOLO_TRANSPORT_H_
#define KOLO_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KOLO_TRANSPORT_ABI 1u
#define KOLO_TRANSPORT_BLOB_BYTES 256

enum {
  KOLO_TRANSPORT_OK = 0,
  KOLO_TRANSPORT_UNREACHABLE = 1, /* this peer cannot be reached by this transport, nor this rank from there: both ends
                                     try the next one */
  KOLO_TRANSPORT_UNSHAREABLE = 2, /* this memory cannot be shared by this transport: the core stages instead */
  KOLO_TRANSPORT_ERROR = 3, /* it should have worked. linkOpen that fails so while all ranks open their links makes
                               both ends go on by the next transport; a link that is opened later fails */
  KOLO_TRANSPORT_BUSY = 4,  /* linkPut: as much is under way as may be; progress, then try again */
  KOLO_TRANSPORT_LOST = 5   /* the link is broken for good: its peer, or the way there, has gone */
};

typedef enum {
  koloLinkMapped = 1, /* linkOpen yields a pointer to the peer's memory */
  koloLinkPosted = 2  /* linkPut puts bytes and signals into it */
} koloLinkKind_t;

#define KOLO_TRANSPORT_MAX_RAILS 4

typedef struct {
  uint32_t bytes;
  unsigned char data[KOLO_TRANSPORT_BLOB_BYTES];
} koloTransportBlob;

/* What kind of memory a transport links. */
typedef enum {
  koloMemoryHost = 0,
  koloMemoryCuda = 1 /* of a CUDA device: pointers are device pointers, for the kernels of the device's context */
} koloMemoryKind_t;

/* What the core tells a device about where it runs. Valid during deviceOpen only. */
typedef struct {
  uint32_t size;                  /* sizeof(koloTransportHost) of the caller */
  unsigned char processId[16];    /* random, one for each process: equal means same address space */
  unsigned char hostId[16];       /* equal means same running kernel */
  unsigned char communicator[32]; /* secret shared by the ranks of this communicator, to recognise each other by */
  int rank;
  int ranks;
  int timeoutMs;
  int device; /* CUDA device of this rank, for transports that link such memory */
  /* Absent from a struct whose size ends before them. Both may be called during the device's whole life, from any
   * thread. */
  const char* (*setting)(
      const char* name); /* the KOLO_... setting in force, as text; NULL: there is none of that name */
  void (*log)(int level, const char* line); /* level 0: error, 1: warning, 2: information, 3: debugging */
  /* Likewise. The NICs near this rank, by the operating system's names, best first, separated by commas: on a host with
   * several, each rank should use those, and ranks begin with different ones. NULL or empty: none is nearer than
   * others. What the user set goes before it. */
  const char* nearNics;
} koloTransportHost;

/* A range of memory. Host memory: fd >= 0: the range is the file's bytes from fdOffset on (a memfd, mapped shared), and
 * may be given to other processes; fd < 0: ordinary memory. The core keeps fd open while the memory is registered. Of
 * kind koloMemoryCuda: memory of a CUDA device, by its device pointer. For a mapped transport fd is -1. For a posted
 * one that registersDeviceMemory: fd >= 0: a dma-buf, open during the call only, in which the range begins at fdOffset;
 * fd < 0: only what the kernel itself knows of the pointer can help (a peer-memory module). */
typedef struct {
  uint32_t size;
  void* address;
  uint64_t bytes;
  int fd;
  uint64_t fdOffset;
  uint32_t kind; /* koloMemoryKind_t */
} koloTransportMemory;

/* How a put names another memory of the peer than the one that its link was opened to: what the peer's memoryKey gave.
 */
#define KOLO_TRANSPORT_KEY_BYTES 24
typedef struct {
  unsigned char data[KOLO_TRANSPORT_KEY_BYTES];
} koloTransportKey;

/* One request of a posted link: bytes of this process's memory to the peer's, then a signal. */
typedef struct {
  uint32_t size;
  uint32_t rail;    /* below linkRails: those of one rail take effect in order, those of different rails in any.
                       A place that was put to is put to again once the peer has shown that it has seen the first */
  const void* from; /* may be read until the request is over (linkUnfinished), and is sent as it then is */
  uint64_t bytes;   /* 0: the signal alone. 8, to an aligned place: there in one piece for the thread that makes the
                       peer's progress */
  void* memory;     /* the registration in which `from` lies; NULL: any other memory */
  const koloTransportKey*
      key; /* of the peer's memory to write to; NULL: the one that the link was opened to. By a key nothing is written a
              second time after its signal has been seen: the peer may use the memory for something else then */
  uint64_t to;       /* offset in it */
  uint64_t signalTo; /* offset in the link's memory of an aligned 64-bit word; KOLO_TRANSPORT_NO_SIGNAL: none */
  uint64_t signal;   /* what is stored there, in one piece, once these bytes and those of all earlier puts of the
                        rail are in place (store-release) */
  uint32_t more;     /* what may come before it goes, to go together with it: KOLO_TRANSPORT_NOTHING, _SOON or _LATER;
                        absent from a     struct whose size ends before it */
} koloTransportPut;
#define KOLO_TRANSPORT_NOTHING 0u
#define KOLO_TRANSPORT_SOON                                                                                      \
  1u /* the next puts of its rail, up to one that waits for nothing, or deviceProgress, one of which comes soon; \
       counted by linkQueued until then */
#define KOLO_TRANSPORT_LATER \
  2u /* the same, but nobody needs it before this rank does one or the other. linkQueued does not count it */
#define KOLO_TRANSPORT_NO_SIGNAL UINT64_MAX

/* A NIC by which links go. */
typedef struct {
  char name[32];     /* the operating system's */
  uint64_t megabits; /* a second, one way; 0: unknown */
} koloTransportNic;

typedef struct koloTransport {
  uint32_t abi;  /* KOLO_TRANSPORT_ABI */
  uint32_t size; /* sizeof(koloTransport): the table may grow at its end */
  const char* name;
  uint32_t linkKind; /* koloLinkKind_t */

  /* Whether the transport works on this machine. Cheap; no device needed. */
  int (*probe)(char* why, size_t whyBytes);

  int (*deviceOpen)(const koloTransportHost* host, void** device, koloTransportBlob* address, char* why,
                    size_t whyBytes);
  /* All memory deregistered and links closed before. Posted: what was accepted still reaches peers that live, also if
   * the process exits right after; that may take twice as long as host->timeoutMs. */
  void (*deviceClose)(void* device);

  int (*memoryRegister)(void* device, const koloTransportMemory* range, void** memory, koloTransportBlob* descriptor,
                        char* why, size_t whyBytes);
  /* Links that peers have opened stay usable: they hold the memory, not this registration. */
  void (*memoryDeregister)(void* device, void* memory);

  /* Mapped: *mapped gets a pointer to the first byte of the peer's range, readable and writable, coherent with the
   * peer's own accesses under the C++ memory model. It stays valid until linkClose, also when the peer is gone. Posted:
   * *mapped is left NULL. The way to the peer has been proven when this returns: it is that rank of this communicator
   * which answered. The peer need not be in a call of its device: its thread answers. */
  int (*linkOpen)(void* device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** link,
                  void** mapped, char* why, size_t whyBytes);
  void (*linkClose)(void* device, void* link);

  /* Optional: NULL, or absent from a table whose size ends before it. Copies `bytes` bytes from the address `from` of
   * the link's peer, ordinary memory that nobody registered, to `to`: one copy where staging takes two. The peer keeps
   * the range as it is until it is told that it has been read. With 0 bytes: whether this works on the link, which the
   * transport has proven by a trial; if not, UNREACHABLE and why. From one thread at a time for each link. */
  int (*linkRead)(void* device, void* link, void* to, uint64_t from, uint64_t bytes, char* why, size_t whyBytes);

  /* koloMemoryKind_t; host memory for a table whose size ends before it. A communicator uses the transports for host
   * memory, and on GPUs also those for the GPUs'. Of a posted transport: host memory; see registersDeviceMemory. */
  uint32_t memoryKind;

  /* ---- posted links only; all of them then. Nothing here blocks, but deviceProgress for as long as it is told to. */

  /* Names the memory for peers, who put it into koloTransportPut.key; valid until memoryDeregister. */
  int (*memoryKey)(void* device, void* memory, koloTransportKey* key, char* why, size_t whyBytes);

  /* 1, 2 or KOLO_TRANSPORT_MAX_RAILS; the same for the life of the link, and for the links of both directions between
   * two ranks (the lesser of what both wish, say). */
  uint32_t (*linkRails)(void* device, void* link);

  /* OK: accepted; it will be carried out, by calls of deviceProgress too. BUSY; LOST. A request with an offset or
   * length that is outside of the peer's memory is an ERROR where this side can know, else the peer's: it drops the
   * link. */
  int (*linkPut)(void* device, void* link, const koloTransportPut* put, char* why, size_t whyBytes);

  /* Requests accepted whose `from` may still be read. Of a lost link: 0. */
  uint64_t (*linkUnfinished)(void* device, void* link);

  /* Requests accepted that need further calls of deviceProgress before the hardware, or the kernel, carries them out
   * alone. The core calls until there are none before it leaves an operation. At most linkUnfinished; of a lost link:
   * 0. */
  uint64_t (*linkQueued)(void* device, void* link);

  /* OK, or LOST and why: also for a rank that only waits for what this peer is to put. */
  int (*linkState)(void* device, void* link, char* why, size_t whyBytes);

  /* Moves what can be moved, in both directions and for all links of the device. waitUs > 0: sleeps up to that long if
   * nothing can be; peer >= 0: the rank whose signals are waited for, to be looked at first. Returns 1 if something has
   * moved, else 0. Which links have been lost is told by linkState. */
  int (*deviceProgress)(void* device, int peer, int waitUs);

  /* 1: any memory may be given to memoryRegister at no cost, for a single operation. 0: registering pins pages. Even
   * then a part of what is registered already should cost next to nothing: of windows the core registers, for a single
   * message, what it is to be put into. */
  uint32_t registersCheaply;

  /* Optional: NULL, or absent from a table whose size ends before it. The communicator has failed: nothing that was
   * accepted need reach anybody any more. When this returns, no memory of the core's or its user's is read for a
   * request any more, nor written to for one of a peer's, by whatever reads and writes it: this library, the kernel, or
   * a NIC. What the core still calls is linkClose, memoryDeregister and deviceClose, which now wait for no peer.
   * Without this function the core puts nothing straight between buffers of its users. */
  void (*deviceAbandon)(void* device);

  /* Optional likewise, for transports that do not register cheaply: with it, the core goes on by another transport when
   * a link is lost. Ends the way to the link's peer, as if that had been lost for good: when this returns, nothing more
   * of what the peer has put arrives in this process's memory. The link's requests are over; linkClose follows. */
  void (*linkAbandon)(void* device, void* link);

  /* Optional likewise. 1: memoryRegister takes memory of CUDA devices too (koloMemoryCuda), as a link's memory and as
   * what is put from (GPUDirect), and is UNSHAREABLE with the reason where that memory, or this machine, does not allow
   * it: the core tries another way, and at last host memory. The processor never touches such memory; linkPut, with
   * koloTransportPut.memory, is told that it is by the registration alone. What is put into it comes into being in the
   * order of the rail also as seen by the kernels of the device, which the core has asked. */
  uint32_t registersDeviceMemory;

  /* What choosing an algorithm goes by: of posted links, optional likewise, and 0 for what is not known.
   * deviceNics: those by which this device's links go, as far as can be said before there are any. Writes at most
   * `most`, and returns how many. The numbers are of the kind of network, not of this one: a choice made by them is the
   * same in each run. */
  int (*deviceNics)(void* device, koloTransportNic* nics, int most);
  uint32_t messageNs;    /* from a put on one rank until it is seen on another that waits for it */
  uint32_t putNs;        /* of the caller's time for a short put */
  uint32_t mostMegabits; /* a second, one way, that a rank gets through whatever its NICs are capable of */

  /* Of mapped links, optional likewise: linkRead the other way. Copies `bytes` bytes from `from` to the address `to` of
   * the link's peer, ordinary memory that the peer gives for that, and keeps until it is told that it has been written.
   * With 0 bytes: whether this works on the link, likewise. */
  int (*linkWrite)(void* device, void* link, uint64_t to, const void* from, uint64_t bytes, char* why, size_t whyBytes);

  /* Of posted links, optional likewise. 1: deviceProgress that is not to wait makes no system call where nothing has
   * come, so that a rank with a core of its own calls it many times before it lets others run. */
  uint32_t looksCheaply;

  /* Of mapped links, optional likewise. 1: linkRead and linkWrite may be called in any thread at any time, also for one
   * link in several threads at once. Communicators that are split from one another then use one link. 0: each of them
   * opens its own. */
  uint32_t sharesLinks;
} koloTransport;

/* What a shared object exports. */
#define KOLO_TRANSPORT_ENTRY "koloTransportEntry"
typedef const koloTransport* (*koloTransportEntry_t)(void);

#ifdef __cplusplus
}
#endif

#endif
