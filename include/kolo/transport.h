/* The contract between Kolo and a transport, for people who write one. transports/README.md is a walk through.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A transport makes links and does nothing else. A link is the right to put bytes into memory of one peer. There are
 * two kinds. A mapped link is a pointer through which this process loads and stores the peer's memory. A posted link
 * takes requests, each of which copies bytes into the peer's memory and then sets a 64-bit signal there.
 *
 * The table is C, sized and versioned. A transport is compiled in, or is a shared object that exports
 *
 *     const koloTransport* koloTransportEntry(void);
 *
 * and is named, by path, in KOLO_TRANSPORT_PLUGINS.
 *
 * GENERAL RULES. The comments below refer to these rules by their numbers.
 *
 *  1. Nouns. Every transport uses three.
 *     - device  what this process opens once for each communicator rank; its address blob is sent to all peers
 *     - memory  a range of this process's memory made reachable; its descriptor blob is sent to the peers
 *     - link    made from a peer's address and one of its descriptors
 *  2. Threads. The core calls one device from one thread at a time, but for what sharesLinks allows. It calls different
 *     devices concurrently.
 *  3. Peers may open links to a registered memory at any time until it is deregistered. A transport that must answer
 *     them needs a thread of its own, which makes connections only. What peers put into this process's memory may
 *     appear there only while the core is in a call of this device. Hardware may put it there at any time.
 *  4. Results. Functions that return an int return KOLO_TRANSPORT_OK or another code below, unless their comment says
 *     otherwise. With another code they write one line to `why`, of at most whyBytes with the terminator. The line says
 *     what was wrong and what was expected.
 *  5. Time. Nothing blocks for longer than host->timeoutMs.
 *  6. Growth. Structs and the table may grow at their ends. A field is absent if the struct's `size` ends before it. An
 *     optional function is NULL, or absent.
 *  7. Ownership. The core owns all blobs, keys and strings that it passes, and may reuse them after the call. The
 *     transport owns devices, memories and links, until the core closes or deregisters them.
 */
#ifndef KOLO_TRANSPORT_H_
#define KOLO_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KOLO_TRANSPORT_ABI 2u
#define KOLO_TRANSPORT_BLOB_BYTES 256

enum {
  KOLO_TRANSPORT_OK = 0,
  /* This peer cannot be reached by this transport, nor this rank from the peer: both ends try the next transport. */
  KOLO_TRANSPORT_UNREACHABLE = 1,
  /* This memory cannot be shared by this transport: the core stages instead. */
  KOLO_TRANSPORT_UNSHAREABLE = 2,
  /* It should have worked. A linkOpen that fails so while all ranks open their links makes both ends go on by the next
   * transport. A link that is opened later fails. */
  KOLO_TRANSPORT_ERROR = 3,
  /* linkPut: as much is in progress as may be. Make progress, then try again. */
  KOLO_TRANSPORT_BUSY = 4,
  /* The link is broken for good: its peer, or the connection to the peer, has gone. */
  KOLO_TRANSPORT_LOST = 5
};

typedef enum {
  koloLinkMapped = 1, /* linkOpen yields a pointer to the peer's memory */
  koloLinkPosted = 2  /* linkPut puts bytes and signals into it */
} koloLinkKind_t;

#define KOLO_TRANSPORT_MAX_RAILS 4

/* Bytes that only the transport understands. The core carries them. */
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
  /* Absent or not by rule 6. Both functions may be called during the device's whole life, from any thread. */
  /* The KOLO_... setting in force, as text; NULL: there is no setting of that name. */
  const char* (*setting)(const char* name);
  void (*log)(int level, const char* line); /* level 0: error, 1: warning, 2: information, 3: debugging */
  /* Absent or not by rule 6. The NICs near this rank, by the operating system's names, best first, separated by commas.
   * On a host with several NICs, each rank should use these, and ranks begin with different ones. NULL or empty: none
   * is nearer than others. What the user set takes precedence. */
  const char* nearNics;
  /* Absent or not by rule 6. Not 0: all ranks are on this host and in this process's network namespace, so that a
   * transport need not listen where other hosts reach it. */
  int isOneHost;
} koloTransportHost;

/* A range of memory.
 *  - Host memory, fd >= 0: the range is the file's bytes from fdOffset on (a memfd, mapped shared), and may be given to
 *    other processes. The file is sealed against shrinking (F_SEAL_SHRINK), because a process that touches what is no
 *    longer there is killed. The core keeps fd open while the memory is registered.
 *  - Host memory, fd < 0: ordinary memory.
 *  - koloMemoryCuda: memory of a CUDA device, by its device pointer.
 *      for a mapped transport: fd is -1
 *      for a posted one that registersDeviceMemory, fd >= 0: a dma-buf, open during the call only, in which the range
 *        begins at fdOffset
 *      for such a one, fd < 0: only what the kernel itself knows of the pointer can help (a peer-memory module) */
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

/* One request of a posted link: bytes of this process's memory go to the peer's, then a signal. */
typedef struct {
  uint32_t size;
  /* Below linkRails. Requests of one rail take effect in order, those of different rails in any order. A place is put
   * to again only once the peer has shown that it has seen the first put. */
  uint32_t rail;
  /* May be read until the request is over (linkUnfinished), and is sent as it then is. */
  const void* from;
  /* 0: the signal alone. 8, to an aligned place: stored in one piece for the thread that makes the peer's progress. */
  uint64_t bytes;
  void* memory; /* the registration in which `from` lies; NULL: any other memory */
  /* Names the peer's memory to write to; NULL: the one that the link was opened to. By a key nothing is written a
   * second time after its signal has been seen, because the peer may use the memory for something else then. */
  const koloTransportKey* key;
  uint64_t to; /* offset in that memory */
  /* Offset in the link's memory of an aligned 64-bit word; KOLO_TRANSPORT_NO_SIGNAL: none. */
  uint64_t signalTo;
  /* What is stored there, in one piece, once these bytes and those of all earlier puts of the rail are in place
   * (store-release). */
  uint64_t signal;
  /* Which later request may be sent together with this one: KOLO_TRANSPORT_NOTHING, _SOON or _LATER. Absent or not by
   * rule 6. */
  uint32_t more;
} koloTransportPut;
#define KOLO_TRANSPORT_NOTHING 0u
/* The next puts of its rail, up to one that waits for nothing, or deviceProgress. One of these comes soon. linkQueued
 * counts the request until then. */
#define KOLO_TRANSPORT_SOON 1u
/* The puts and the call of KOLO_TRANSPORT_SOON, but no rank needs the request before this rank does one of these.
 * linkQueued does not count it. */
#define KOLO_TRANSPORT_LATER 2u
#define KOLO_TRANSPORT_NO_SIGNAL UINT64_MAX

/* A NIC by which links go. */
typedef struct {
  char name[32];     /* the operating system's */
  uint64_t megabits; /* a second, one way; 0: unknown */
} koloTransportNic;

typedef struct koloTransport {
  uint32_t abi;  /* KOLO_TRANSPORT_ABI */
  uint32_t size; /* sizeof(koloTransport) */
  const char* name;
  uint32_t linkKind; /* koloLinkKind_t */

  /* Tells whether the transport works on this machine. Cheap; no device needed. */
  int (*probe)(char* why, size_t whyBytes);

  /* Opens a device: *device is the transport's, *address is filled and sent to all peers. */
  int (*deviceOpen)(const koloTransportHost* host, void** device, koloTransportBlob* address, char* why,
                    size_t whyBytes);
  /* Closes a device. All memory has been deregistered and all links have been closed before.
   * Posted: what was accepted still reaches peers that live, also if the process exits right after. That may take twice
   * as long as host->timeoutMs. */
  void (*deviceClose)(void* device);

  /* Makes a range of memory reachable: *memory is the transport's, *descriptor is filled and sent to the peers. */
  int (*memoryRegister)(void* device, const koloTransportMemory* range, void** memory, koloTransportBlob* descriptor,
                        char* why, size_t whyBytes);
  /* Ends that. Links that peers have opened stay usable: they hold the memory, not this registration. */
  void (*memoryDeregister)(void* device, void* memory);

  /* Opens a link to a peer's memory. When it returns, the way to the peer has been proven: it is that rank of this
   * communicator which answered. The peer need not be in a call of its device: its thread answers.
   * Mapped: *mapped gets a pointer to the first byte of the peer's range, readable and writable, coherent with the
   * peer's own accesses under the C++ memory model. It stays valid until linkClose, also when the peer is gone.
   * Posted: *mapped is left NULL.
   * *bytes gets how much of the peer's memory the link reaches: mapped, as many bytes as may be touched from *mapped
   * on, whatever the peer does. It is what was found, and not only what the peer says; the core compares it with what
   * it needs. */
  int (*linkOpen)(void* device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** link,
                  void** mapped, uint64_t* bytes, char* why, size_t whyBytes);
  /* Closes a link. */
  void (*linkClose)(void* device, void* link);

  /* Optional. Copies `bytes` bytes from the address `from` of the link's peer to `to`: one copy where staging takes
   * two. `from` is ordinary memory that nobody registered. The peer keeps the range as it is until it is told that it
   * has been read. One thread at a time calls this for each link.
   * With 0 bytes: tells whether this works on the link, which the transport has proven by a trial. If not, it returns
   * UNREACHABLE and why. */
  int (*linkRead)(void* device, void* link, void* to, uint64_t from, uint64_t bytes, char* why, size_t whyBytes);

  /* koloMemoryKind_t; host memory if absent. A communicator on the host uses the transports for host memory. A
   * communicator on GPUs also uses those for GPU memory. Of a posted transport this is host memory; see
   * registersDeviceMemory. */
  uint32_t memoryKind;

  /* ---- posted links only; then all up to registersCheaply are required. Nothing here blocks, except deviceProgress
   * for as long as it is told to. */

  /* Names a memory for peers, which put the key into koloTransportPut.key. Valid until memoryDeregister. */
  int (*memoryKey)(void* device, void* memory, koloTransportKey* key, char* why, size_t whyBytes);

  /* Tells the number of rails: 1, 2 or KOLO_TRANSPORT_MAX_RAILS. It is the same for the life of the link, and for the
   * links of both directions between two ranks (for example, the lesser of what both wish). */
  uint32_t (*linkRails)(void* device, void* link);

  /* Accepts a request. OK: it will be carried out, by calls of deviceProgress too. BUSY. LOST.
   * A request with an offset or length that is outside of the peer's memory is an ERROR where this side can know.
   * Otherwise it is the peer's error, and the peer drops the link. */
  int (*linkPut)(void* device, void* link, const koloTransportPut* put, char* why, size_t whyBytes);

  /* Counts the requests accepted whose `from` may still be read. Of a lost link: 0. */
  uint64_t (*linkUnfinished)(void* device, void* link);

  /* Counts the requests accepted that need further calls of deviceProgress before the hardware, or the kernel, carries
   * them out alone. The core calls deviceProgress until there are none before it leaves an operation. At most
   * linkUnfinished. Of a lost link: 0. */
  uint64_t (*linkQueued)(void* device, void* link);

  /* Tells the state of a link, also for a rank that only waits for what the peer is to put: OK, or LOST and why. */
  int (*linkState)(void* device, void* link, char* why, size_t whyBytes);

  /* Moves what can be moved, in both directions and for all links of the device. Returns 1 if something has moved, else
   * 0. linkState tells which links have been lost.
   *   peer    >= 0: the rank whose signals are waited for, to be looked at first
   *   waitUs  > 0: sleeps up to that long if nothing can be moved */
  int (*deviceProgress)(void* device, int peer, int waitUs);

  /* 1: any memory may be given to memoryRegister at no cost, for a single operation. 0: registering pins pages. Even
   * then a part of what is registered already should cost next to nothing: the core registers, for a single message,
   * the part of a window that the message is put into. */
  uint32_t registersCheaply;

  /* Optional. Says that the communicator has failed: nothing that was accepted need reach any peer any more.
   * When this returns, nobody reads memory of the core or its user for a request any more, nor writes to it for one of
   * a peer's: not this library, not the kernel, not a NIC. The core still calls linkClose, memoryDeregister and
   * deviceClose, which now wait for no peer. Without this function the core puts nothing straight between buffers of
   * its users. */
  void (*deviceAbandon)(void* device);

  /* Optional, for transports that do not register cheaply. With it, the core goes on by another transport when a link
   * is lost. Ends the way to the link's peer, as if it had been lost for good: when this returns, nothing more of what
   * the peer has put arrives in this process's memory. The link's requests are over. linkClose follows. */
  void (*linkAbandon)(void* device, void* link);

  /* Optional. 1: memoryRegister takes memory of CUDA devices too (koloMemoryCuda), as a link's memory and as what is
   * put from (GPUDirect). It returns UNSHAREABLE with the reason where that memory, or this machine, does not allow it:
   * the core tries another way, and at last host memory. The processor never touches such memory. linkPut learns that
   * memory is of this kind by the registration in koloTransportPut.memory alone. What is put into it takes effect in
   * the order of the rail, also as seen by the kernels of the device. The core has asked the device whether it promises
   * that. */
  uint32_t registersDeviceMemory;

  /* ---- what choosing an algorithm goes by: posted links, optional, and 0 for what is not known. The numbers are of
   * the kind of network, not of this one, so that a choice made by them is the same in each run. */

  /* Writes the NICs by which this device's links go, as far as can be said before there are any: `most` at most.
   * Returns how many. */
  int (*deviceNics)(void* device, koloTransportNic* nics, int most);
  uint32_t messageNs;    /* nanoseconds from a put on one rank until another rank that waits for it sees it */
  uint32_t putNs;        /* nanoseconds of the caller's time for a short put */
  uint32_t mostMegabits; /* a second, one way, that a rank gets through whatever its NICs are capable of */

  /* Optional, mapped links only. Copies `bytes` bytes from `from` to the address `to` of the link's peer: linkRead the
   * other way. `to` is ordinary memory that the peer gives for that, and keeps until it is told that it has been
   * written. With 0 bytes: as linkRead. */
  int (*linkWrite)(void* device, void* link, uint64_t to, const void* from, uint64_t bytes, char* why, size_t whyBytes);

  uint32_t reserved; /* 0 */

  /* Optional, mapped links only. 1: linkRead and linkWrite may be called in any thread at any time, also for one link
   * in several threads at once. Communicators that are split from one another then use one link. 0: each of them opens
   * its own. */
  uint32_t sharesLinks;

  /* Optional, posted links only. 1: where the setting KOLO_ENCRYPT is 1, what is put travels encrypted, and a peer that
   * does not do the same is UNREACHABLE. 0: the core does not use this transport then. */
  uint32_t encrypts;
} koloTransport;

/* What a shared object exports. */
#define KOLO_TRANSPORT_ENTRY "koloTransportEntry"
typedef const koloTransport* (*koloTransportEntry_t)(void);

#ifdef __cplusplus
}
#endif

#endif
