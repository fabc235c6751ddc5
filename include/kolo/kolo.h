/* Kolo: collective communication for host and GPU memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * C99. Names follow NCCL, so that porting a program is a rename.
 *
 * Conventions that hold for every function:
 *  - Each returns a koloResult_t; koloSuccess is 0. koloGetLastError tells the calling thread in words what went wrong.
 *  - Counts are in elements of the datatype, never in bytes, unless the name says "bytes".
 *  - A count of 0 is legal everywhere, and then the buffer may be NULL.
 *  - A place for a result is written only when the call succeeds.
 *  - Handles are opaque. A handle that was destroyed, or that another library made, is refused with koloInvalidHandle.
 *  - Communicators on host memory may be used to the end of the process, also by destructors of global objects. CUDA
 *    ends before these.
 *  - The library never frees, keeps or writes memory of the caller's beyond what a function's comment says.
 *
 * Thread safety: different communicators may be driven from different threads at the same time. Calls on one
 * communicator from several threads are executed one after the other, in the order in which they took the communicator;
 * that order must be the same on all ranks. A handle may be destroyed while other threads use it: their calls end
 * first, or are refused. koloCommAbort, koloCommGetAsyncError and the queries (Count, UserRank, GetErrorString,
 * GetLastError) may be called from any thread at any time.
 */
#ifndef KOLO_KOLO_H_
#define KOLO_KOLO_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KOLO_MAJOR 0
#define KOLO_MINOR 1
#define KOLO_PATCH 0
/* 0.1.0 is 100; comparable as an integer. */
#define KOLO_VERSION_CODE (KOLO_MAJOR * 10000 + KOLO_MINOR * 100 + KOLO_PATCH)

#if defined(__GNUC__)
#define KOLO_API __attribute__((visibility("default")))
#else
#define KOLO_API
#endif

/* Enumerations have the size of an int in C. C++ is told so, which makes every number that a C caller may pass a value
 * that can be looked at and refused. */
#if defined(__cplusplus)
#define KOLO_OF_INT : int
#else
#define KOLO_OF_INT
#endif

/* ---------------------------------------------------------------- results */

typedef enum KOLO_OF_INT {
  koloSuccess = 0,
  koloSystemError = 1,     /* the operating system refused something: see koloGetLastError */
  koloInternalError = 2,   /* a bug in Kolo */
  koloInvalidArgument = 3, /* an argument that has no code of its own below */
  koloInvalidUsage = 4,    /* a legal call at the wrong time (group misuse, finalised communicator, ...) */
  koloRemoteError = 5,     /* another rank died or failed; the message names it */
  koloInProgress = 6,      /* not finished yet (koloStreamQuery, koloRequestTest), or not begun (koloSetMayWait) */
  koloTimeout = 7,         /* a deadline passed; the message names the rank and step waited for */
  koloAborted = 8,         /* koloCommAbort was called, here or on another rank */
  koloMismatch = 9,        /* the ranks did not call the same operation; the message prints both sides */
  koloInvalidPointer = 10, /* NULL where memory or a result location is needed */
  koloInvalidCount = 11,   /* a count that is negative when read as signed, or whose bytes overflow */
  koloInvalidDatatype = 12,
  koloInvalidOperation = 13,   /* unknown reduction, or one that is undefined for the datatype */
  koloInvalidRoot = 14,        /* a root or peer outside 0..n-1 */
  koloInvalidHandle = 15,      /* a handle (communicator, stream, request, ...) that is destroyed or not ours */
  koloInvalidOverlap = 16,     /* send and receive buffers overlap other than in place */
  koloInvalidRankCount = 17,   /* fewer than 1 rank, or more than the library supports */
  koloInvalidRank = 18,        /* a rank outside 0..n-1 */
  koloDuplicateRank = 19,      /* two processes claimed one rank */
  koloUnreachable = 20,        /* the root's address, or a rank, cannot be reached by any means */
  koloInvalidEnvironment = 21, /* an environment variable is malformed; the message names it */
  koloOutOfMemory = 22,
  koloUnsupported = 23, /* legal, but not available in this build or for this communicator */
  koloTruncated = 24,   /* a message was longer than the receive buffer */
  koloNumResults = 25
} koloResult_t;

/* The library's version as KOLO_VERSION_CODE. */
KOLO_API koloResult_t koloGetVersion(int* version);

/* A constant English phrase for a code. Never NULL. */
KOLO_API const char* koloGetErrorString(koloResult_t result);

/* ------------------------------------------------------------------ types */

typedef struct koloComm* koloComm_t;
typedef struct koloStream* koloStream_t; /* NULL: the call returns when this rank's result is ready */
typedef struct koloWindow* koloWindow_t;
typedef struct koloRequest* koloRequest_t; /* an operation under way: see "requests" */
typedef struct koloEvent* koloEvent_t;     /* a place in a stream */

#define KOLO_COMM_NULL ((koloComm_t)0)
#define KOLO_SPLIT_NOCOLOR (-1)
#define KOLO_ANY_SOURCE (-1)
#define KOLO_ANY_TAG (-1)
/* Tags are 0..KOLO_MAX_TAG. */
#define KOLO_MAX_TAG INT_MAX
#define KOLO_UNIQUE_ID_BYTES 128

/* Made by one rank, handed to the others by any means. It contains a secret: whoever holds it may join. */
typedef struct {
  char internal[KOLO_UNIQUE_ID_BYTES];
} koloUniqueId;

typedef enum KOLO_OF_INT {
  koloInt8 = 0,
  koloUint8 = 1,
  koloInt32 = 2,
  koloUint32 = 3,
  koloInt64 = 4,
  koloUint64 = 5,
  koloFloat16 = 6,
  koloFloat32 = 7,
  koloFloat64 = 8,
  koloBfloat16 = 9,
  koloFloat8e4m3 = 10, /* OCP FP8 E4M3: no infinities; overflow saturates to 448 */
  koloFloat8e5m2 = 11, /* OCP FP8 E5M2; overflow saturates to 57344 unless an operand was infinite */
  koloInt16 = 12,
  koloUint16 = 13,
  koloBool = 14, /* one byte; any non-zero value is true, results are 0 or 1 */
  koloComplex64 = 15,
  koloComplex128 = 16,
  koloNumDatatypes = 17
} koloDataType_t;

/* Reductions. Integers wrap modulo 2^bits. float16, bfloat16 and float8 accumulate in float32 and are rounded to
 * nearest even when stored. The algorithms line, one_shot and two_shot store nothing but the result, and reproducible
 * communicators use no others. The algorithms ring, biring, recursive, tree and hierarchical also store partial
 * results, in the datatype. There a partial sum or product that is too large becomes infinite (of float8 the largest
 * number), even if the result would be representable. That holds for sums, pre-multiplied sums and products, but not
 * for averages.
 *
 * min and max of floating-point values propagate NaN. Logical operations read non-zero as true and write 0 or 1.
 * Bitwise operations are for integers and bool. complex has sum, prod, avg and pre-multiplied sum. Values from
 * koloNumOps on are handles made by koloRedOpCreate and koloRedOpCreatePreMulSum.
 *
 * avg divides the sum by the number of ranks; integers are truncated towards zero. If the datatype has 8 or 16 bits,
 * the sum may be too large for it, and the result is right by every algorithm. If the datatype is wider, a sum of
 * integers may wrap, and one of floats become infinite.
 *   - int8, uint8, int16, uint16: the inputs of all ranks are folded at once. Only line, one_shot and two_shot do
 *     that, so one of them carries out the average, whatever algorithm was asked for. A communicator of more than 64
 *     ranks returns koloUnsupported.
 *   - float16, bfloat16, float8: every algorithm averages them. Partial results are stored divided by a power of two,
 *     so they are never too large. Each store rounds, as in a sum; a partial result near zero is rounded to a
 *     multiple of the smallest number of the datatype. */
typedef enum KOLO_OF_INT {
  koloSum = 0,
  koloProd = 1,
  koloMax = 2,
  koloMin = 3,
  koloAvg = 4,
  koloLogicalAnd = 5,
  koloLogicalOr = 6,
  koloLogicalXor = 7,
  koloBitAnd = 8,
  koloBitOr = 9,
  koloBitXor = 10,
  koloNumOps = 11,
  koloMaxRedOp = 0x7fffffff
} koloRedOp_t;

typedef enum KOLO_OF_INT {
  koloCollectiveAllReduce = 0,
  koloCollectiveReduce = 1,
  koloCollectiveBroadcast = 2,
  koloCollectiveAllGather = 3,
  koloCollectiveReduceScatter = 4,
  koloCollectiveAllToAll = 5,
  koloCollectiveGather = 6,
  koloCollectiveScatter = 7,
  koloCollectiveBarrier = 8,
  koloCollectiveSendRecv = 9,
  koloNumCollectives = 10
} koloCollective_t;

/* Bytes of one element; 0 for an unknown datatype. */
KOLO_API size_t koloDataTypeSize(koloDataType_t datatype);
/* "float32", "all_reduce", "sum", ...; NULL for an unknown value. */
KOLO_API const char* koloDataTypeName(koloDataType_t datatype);
KOLO_API const char* koloRedOpName(koloRedOp_t op);
KOLO_API const char* koloCollectiveName(koloCollective_t collective);

/* Whether a predefined reduction is defined for a datatype: 1 or 0. */
KOLO_API int koloRedOpIsDefined(koloRedOp_t op, koloDataType_t datatype);

/* ---------------------------------------------------------- communicators */

/* Options of a communicator. Start from KOLO_CONFIG_INITIALIZER; a field left at its initial value takes the setting
 * of the environment variable named beside it, or else the library's default. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int timeoutMs;          /* KOLO_TIMEOUT_MS: an operation that waits longer fails with koloTimeout; 0: no deadline */
  int reproducible;       /* KOLO_REPRODUCIBLE: 1 folds every element in rank order 0..n-1 whatever the algorithm */
  const char* algorithm;  /* KOLO_ALGORITHM: "all_reduce:biring,broadcast:tree"; see koloCommSetAlgorithm */
  const char* transports; /* KOLO_TRANSPORTS: names in order of preference, "shm" */
  const char* name;       /* shown in messages */
  int device;   /* KOLO_DEVICE: KOLO_HOST, or the CUDA device in whose memory this rank's buffers lie. Streams are
                   then cudaStream_t, cast to koloStream_t, and a call returns when its operation is enqueued; but
                   a rank that is about 100 operations or groups ahead of its device waits in the call. All
                   ranks of a communicator use devices, or none does. Ranks that share a device need
                   streams of their own, made with cudaStreamNonBlocking. */
  int resident; /* KOLO_RESIDENT: 1: small operations on an idle stream (cudaStreamNonBlocking) are given to a kernel
                   that stays on the GPU until it has had nothing to do for KOLO_RESIDENT_IDLE_US, and are not launched.
                   Whatever waits for the device to be idle (cudaDeviceSynchronize, cudaFree) then waits up to that much
                   longer. The same on all ranks; one that cannot have such a kernel says why, and launches. 2: also
                   those that follow others in one stream, whatever the program enqueues between them, if all that comes
                   before an operation in its stream can run beside the kernel, which has four of the GPU's
                   multiprocessors: a cooperative launch on all of them would wait for ever. */
  int eager; /* KOLO_EAGER: 0: a call that is the first of its kind is checked against those of the other ranks before
                it returns. 1: not where this rank only gives, and there is room for what it gives, as when it repeats
                such a call: so it does not wait for the others, and that they have called something else shows at a
                later call. Each rank's own choice; host memory only. */
} koloConfig_t;

#define KOLO_HOST (-1)

#define KOLO_CONFIG_MAGIC 0x4b4f4c4fu
#define KOLO_CONFIG_UNDEF_INT INT_MIN
#define KOLO_CONFIG_INITIALIZER                                                                                        \
  {                                                                                                                    \
    sizeof(koloConfig_t), KOLO_CONFIG_MAGIC, KOLO_VERSION_CODE, KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT, 0, 0, 0, \
        KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT                                            \
  }

/* Makes an id and starts its rendezvous in this process, listening on KOLO_INTERFACE's address or, by default, on the
 * address by which this machine is known to itself. The rank that uses the id with rank 0 need not be this process, but
 * this process must live until all have joined; it goes on relaying control messages while it lives. */
KOLO_API koloResult_t koloGetUniqueId(koloUniqueId* uniqueId);

/* Collective over nranks callers that hold the same id; each rank 0..nranks-1 exactly once. A rank whose settings or
 * configuration are wrong ends the attempt of all ranks: the others return koloRemoteError, with its reason. A comm,
 * nranks or rank out of range is refused before anything is sent. */
KOLO_API koloResult_t koloCommInitRank(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank);
KOLO_API koloResult_t koloCommInitRankConfig(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank,
                                             const koloConfig_t* config);
/* Makes nranks communicators at once whose ranks are threads of this process; comms has room for nranks handles. */
KOLO_API koloResult_t koloCommInitAll(koloComm_t* comms, int nranks, const koloConfig_t* config);
/* Joins the job that a launcher described in the environment: KOLO_RANK/KOLO_SIZE/KOLO_ROOT, torchrun, Slurm, Open MPI
 * or MPICH, in that order. Alone (none of them set) it makes a communicator of one rank. Ranks that run as different
 * users find each other by KOLO_ROOT only. */
KOLO_API koloResult_t koloCommInitFromEnv(koloComm_t* comm, const koloConfig_t* config);

/* Collective over comm. Ranks that give the same color form a new communicator, ordered by key and then by old rank.
 * KOLO_SPLIT_NOCOLOR yields KOLO_COMM_NULL. config NULL: that of the parent.
 * Blocks until all ranks of comm have called it, for KOLO_INIT_TIMEOUT_MS at most. A rank that is late, or whose
 * configuration is not valid, makes the call fail on all ranks; comm goes on.
 * On one host the new communicator shares the links of comm, and memory of which all communicators that are split from
 * one another have parts. It takes no file descriptor, mapping or thread, and needs no message of the control plane.
 * The first split of a communicator makes that memory: one descriptor, and of address space up to 4 GiB for each rank,
 * which takes memory where it is used. A communicator shares nothing if its configuration names other transports than
 * those of comm, or a device, or if its process locks all its memory (mlockall). Each communicator stands alone in all
 * else: comm may be destroyed first, and the failure of one is not that of the other. The death of a rank is that of
 * all communicators that have it. */
KOLO_API koloResult_t koloCommSplit(koloComm_t comm, int color, int key, koloComm_t* newcomm,
                                    const koloConfig_t* config);
/* Collective over the ranks of comm that are not excluded; works when excluded ranks are dead and comm has failed. */
KOLO_API koloResult_t koloCommShrink(koloComm_t comm, const int* excludeRanks, int excludeCount, koloComm_t* newcomm,
                                     const koloConfig_t* config);
/* Waits until all operations enqueued here have finished, and until all ranks have entered those in which this rank
 * only gave (but see koloSetMayWait). Afterwards operations are refused; questions are answered. */
KOLO_API koloResult_t koloCommFinalize(koloComm_t comm);
/* Finalises if that was not done, and frees the communicator. The handle is dead afterwards, whatever is returned. */
KOLO_API koloResult_t koloCommDestroy(koloComm_t comm);
/* Makes every operation of comm, on all ranks, return koloAborted in bounded time; then frees the communicator. */
KOLO_API koloResult_t koloCommAbort(koloComm_t comm);
/* koloSuccess in *asyncError, or the error that comm has failed with. */
KOLO_API koloResult_t koloCommGetAsyncError(koloComm_t comm, koloResult_t* asyncError);
/* The calling thread's last error message, or the one that comm failed with where comm is given. Valid until the
 * thread's next failing call. comm may be NULL. Never NULL. */
KOLO_API const char* koloGetLastError(koloComm_t comm);
KOLO_API koloResult_t koloCommCount(koloComm_t comm, int* count);
KOLO_API koloResult_t koloCommUserRank(koloComm_t comm, int* rank);
/* How many cores (hardware threads) of hosts comm's ranks may use, all together, by their affinity and the quotas of
 * their control groups when comm was made: where that is less than koloCommCount, they share cores. */
KOLO_API koloResult_t koloCommCores(koloComm_t comm, int* cores);
/* A thread that waits in an operation of comm, and has polled for a while in vain, calls function(context) again and
 * again: for programs in which another library must go on meanwhile, because what it owes a peer may be what keeps that
 * peer from coming. The function must return soon, and may not call operations, groups, the end of a communicator or
 * this function (koloInvalidUsage). NULL: none, as at first. On GPUs, where calls do not wait, it is never called.
 * context must live as long as comm. */
typedef void (*koloProgressFunction_t)(void* context);
KOLO_API koloResult_t koloCommSetProgress(koloComm_t comm, koloProgressFunction_t function, void* context);
/* mayWait 0: operations that the calling thread gives to no stream do not wait for other ranks, until it says 1. One
 * that has to, or might, returns koloInProgress and has done nothing; it is still the next one. What is done at once is
 * a collective in which this rank only gives (a broadcast's root, say), if it is one of the communicator's last ones
 * again or koloConfig_t.eager is 1, and there is room for what it gives: for whoever wants to have given early what
 * others will ask for. koloCommFinalize returns koloInProgress, and has done nothing, while it would have to wait for
 * other ranks to enter operations in which this rank only gave. Groups, streams and the other functions that are no
 * operations wait as ever, and so does an operation behind one that another thread or a stream has begun on the
 * communicator; on GPUs nothing waits. */
KOLO_API koloResult_t koloSetMayWait(int mayWait);

/* Operations that the calling thread calls from now on, blocking or not, to a stream or not, have this deadline and not
 * that of their communicator (koloConfig_t.timeoutMs): one that waits longer for other ranks fails with koloTimeout,
 * and the communicator with it. 0: no deadline. -1: each communicator's own, as at first. A message that was started as
 * a request waits from its call on, everything else from when its execution begins. On GPUs it is ignored. */
KOLO_API koloResult_t koloSetTimeout(int timeoutMs);

/* ------------------------------------------------------------ collectives */
/* Buffers: sendbuf and recvbuf may be the same where "in place" is stated, and must not overlap otherwise.
 * An operation's result is ready when the call returns (stream NULL) or when the stream has reached it (on GPUs
 * always). Ranks that call different things get koloMismatch, all of them: a rank whose own part was over before that,
 * from one of its next calls, koloCommFinalize and koloCommDestroy included. So it is with one that got all it needs
 * from a root that a third rank then does not meet, and with one that only gives (the root of a broadcast or scatter,
 * the others in a reduce or gather) and repeats one of its last calls: it may run up to 32 calls ahead of the others.
 * A call that returns an error gives its buffers back, though peers may still read there. What they read then does not
 * count; but on GPUs nobody notices that they were written, and windows of ranks that are threads of one process must
 * not be freed, before all have returned. Nobody writes to ordinary memory that was given back, but a peer that is
 * stopped (SIGSTOP, a debugger) for two seconds in the middle of doing so. Ordinary memory of some length may be read
 * and written by the kernel (KOLO_SINGLE_COPY_BYTES), which refuses special mappings (secret, of devices). The kernel
 * also refuses the memory of a process that is not dumpable (prctl PR_SET_DUMPABLE; a change of user has that effect
 * too): such a rank's memory is staged, from whenever it is so. */

/* recvbuf[i] = fold over ranks of sendbuf[i]. In place: sendbuf == recvbuf. */
KOLO_API koloResult_t koloAllReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                    koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* As all-reduce, the result on root only; elsewhere recvbuf is not touched and may be NULL. In place on the root. */
KOLO_API koloResult_t koloReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                 koloRedOp_t op, int root, koloComm_t comm, koloStream_t stream);
/* root's sendbuf into every recvbuf. sendbuf is read on the root only. In place: sendbuf == recvbuf. */
KOLO_API koloResult_t koloBroadcast(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, int root,
                                    koloComm_t comm, koloStream_t stream);
/* recvbuf holds n blocks of sendcount. In place: sendbuf == recvbuf + rank * sendcount. */
KOLO_API koloResult_t koloAllGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                    koloComm_t comm, koloStream_t stream);
/* sendbuf holds n blocks of recvcount; this rank gets block `rank` of the fold. In place: recvbuf == sendbuf + rank *
 * recvcount. */
KOLO_API koloResult_t koloReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                        koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* Both buffers hold n blocks of count; block j of rank i becomes block i of rank j. In place: sendbuf == recvbuf. */
KOLO_API koloResult_t koloAllToAll(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                   koloComm_t comm, koloStream_t stream);
/* root's recvbuf holds n blocks of sendcount. In place on the root: sendbuf == recvbuf + root * sendcount. */
KOLO_API koloResult_t koloGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                 int root, koloComm_t comm, koloStream_t stream);
/* root's sendbuf holds n blocks of recvcount. In place on the root: recvbuf == sendbuf + root * recvcount. */
KOLO_API koloResult_t koloScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                  int root, koloComm_t comm, koloStream_t stream);
/* Returns when every rank has entered. */
KOLO_API koloResult_t koloBarrier(koloComm_t comm, koloStream_t stream);

/* Forms with a count for each rank. counts and displs have one entry for each rank, in elements; displs NULL means one
 * block after the other. The arrays are read before the call returns. */
/* counts and displs are the same on all ranks; sendbuf holds counts[rank]. In place: sendbuf == recvbuf + displs[rank].
 */
KOLO_API koloResult_t koloAllGatherv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                     koloDataType_t datatype, koloComm_t comm, koloStream_t stream);
/* counts and displs are the same on all ranks and describe sendbuf. In place: recvbuf == sendbuf + displs[rank]. */
KOLO_API koloResult_t koloReduceScatterv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                         koloDataType_t datatype, koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* sendcounts[j] here must equal recvcounts[i] there. Not in place. */
KOLO_API koloResult_t koloAllToAllv(const void* sendbuf, const size_t* sendcounts, const size_t* senddispls,
                                    void* recvbuf, const size_t* recvcounts, const size_t* recvdispls,
                                    koloDataType_t datatype, koloComm_t comm, koloStream_t stream);
/* recvcounts and displs are read on the root only; sendcount must equal the root's recvcounts[rank]. */
KOLO_API koloResult_t koloGatherv(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                                  const size_t* displs, koloDataType_t datatype, int root, koloComm_t comm,
                                  koloStream_t stream);
KOLO_API koloResult_t koloScatterv(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                                   size_t recvcount, koloDataType_t datatype, int root, koloComm_t comm,
                                   koloStream_t stream);

/* --------------------------------------------------------- point to point */

typedef struct {
  int source;
  int tag;
  size_t count; /* elements of the receiver's datatype */
} koloRecvStatus_t;

/* Messages between two ranks with one tag arrive in the order sent. A send may return before the receiver has called.
 */
KOLO_API koloResult_t koloSend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream);
/* Receives exactly what peer's koloSend sent (tag 0); a count or datatype that differs is koloMismatch. */
KOLO_API koloResult_t koloRecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream);
KOLO_API koloResult_t koloSendTag(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloComm_t comm, koloStream_t stream);
/* peer may be KOLO_ANY_SOURCE and tag KOLO_ANY_TAG. Receives up to count elements; a longer message is koloTruncated.
 * status may be NULL; otherwise it is written when the message has arrived. */
KOLO_API koloResult_t koloRecvTag(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloRecvStatus_t* status, koloComm_t comm, koloStream_t stream);

/* ----------------------------------------------------------------- groups */

/* Operations between the two are started together by koloGroupEnd; no order inside the group can deadlock, on one or on
 * several communicators. Groups nest. Arguments are checked by each call; operations with a faulty argument are refused
 * there, and koloGroupEnd returns the first such error without running anything. With a NULL stream koloGroupEnd
 * returns when all are done. One rank's operations of a group must go to one stream for each communicator. */
KOLO_API koloResult_t koloGroupStart(void);
KOLO_API koloResult_t koloGroupEnd(void);

/* --------------------------------------------------------------- requests */

/* A request stands for an operation that the call has started and does not wait for. Its buffers, and the place for a
 * receive's status, belong to the operation until it is done. Arrays of counts and displacements are read by the call.
 * Communicators on host memory only; on GPUs every call is nonblocking already (koloUnsupported).
 *
 * Order. Collectives of a communicator are executed in the order of their calls, whether as requests, blocking or to
 * streams, and no two at once. Messages are matched when they are called: a posted receive, or a collective that waits
 * for other ranks, keeps no later message of the communicator from going. Behind an operation that was given to a
 * stream, on the same communicator, a request begins when that has ended (a message on a stream: when it has begun).
 *
 * Progress. Who waits for a request makes progress for all of its communicator's. While nobody waits, a thread of the
 * communicator's takes over within 2 milliseconds; a collective with koloRequestNotify, at once. The thread is started
 * with the first request that is not done when its call returns, and sleeps while there are none. There is no progress
 * while another thread of this rank is in koloCommSplit, koloCommShrink, koloWindowRegister or koloWindowDeregister.
 *
 * Failure. Arguments are checked by the call, which then gives no request. A failure of the communicator is that of all
 * its requests, and shows by itself, also while nobody waits. koloCommFinalize and koloCommDestroy wait for requests,
 * but a receive that no message has come for ends with koloAborted; or with koloRemoteError, if the rank that it waits
 * for has ended its communicator before.
 *
 * Every request is given back by koloRequestFree; a process has 16384 at a time, then koloOutOfMemory. All functions
 * may be called from any thread, several of them for one request at the same time; koloRequestFree ends after the
 * others. A group's request has the deadline (koloSetTimeout) that holds where the group ends. */
KOLO_API koloResult_t koloIsend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloComm_t comm, koloRequest_t* request);
/* As koloRecvTag: peer may be KOLO_ANY_SOURCE, tag KOLO_ANY_TAG, status NULL. */
KOLO_API koloResult_t koloIrecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloRecvStatus_t* status, koloComm_t comm, koloRequest_t* request);

/* Collectives: as those of the same name without I. */
KOLO_API koloResult_t koloIallReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                     koloRedOp_t op, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIreduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                  koloRedOp_t op, int root, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIbroadcast(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                     int root, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIallGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                     koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIreduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                         koloRedOp_t op, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIallToAll(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                    koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIgather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                  int root, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIscatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                   int root, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIbarrier(koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIallGatherv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                      koloDataType_t datatype, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIreduceScatterv(const void* sendbuf, void* recvbuf, const size_t* counts,
                                          const size_t* displs, koloDataType_t datatype, koloRedOp_t op,
                                          koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIallToAllv(const void* sendbuf, const size_t* sendcounts, const size_t* senddispls,
                                     void* recvbuf, const size_t* recvcounts, const size_t* recvdispls,
                                     koloDataType_t datatype, koloComm_t comm, koloRequest_t* request);
KOLO_API koloResult_t koloIgatherv(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                                   const size_t* displs, koloDataType_t datatype, int root, koloComm_t comm,
                                   koloRequest_t* request);
KOLO_API koloResult_t koloIscatterv(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                                    size_t recvcount, koloDataType_t datatype, int root, koloComm_t comm,
                                    koloRequest_t* request);
/* As koloGroupEnd, without waiting: one request for all that the group holds, on whatever communicators. Its operations
 * are those called with a NULL stream, and the group is the outermost one (koloInvalidUsage). */
KOLO_API koloResult_t koloIgroupEnd(koloRequest_t* request);

/* The operation's result, or koloInProgress while it is not done. Makes progress as far as that needs no waiting. */
KOLO_API koloResult_t koloRequestTest(koloRequest_t request);
/* Returns when the operation is done, with its result; or after timeoutMs with koloInProgress, and the operation goes
 * on. timeoutMs -1: whenever it is done. */
KOLO_API koloResult_t koloRequestWait(koloRequest_t request, int timeoutMs);
/* Returns when one of the requests is done: its place in *index, and koloSuccess, whatever its result is. NULL entries
 * are passed over; *index is -1 where there are no others. koloInProgress after timeoutMs, as koloRequestWait. */
KOLO_API koloResult_t koloRequestWaitAny(int count, const koloRequest_t* requests, int timeoutMs, int* index);
/* function(result, message, context) is called once, when the operation is done: by a thread of the library's that does
 * nothing else, perhaps after koloRequestWait has returned, or by this call if it is done already. message says what
 * went wrong ("" if nothing did), and is valid during the call. The function may start requests and free this one; it
 * should return soon, for others wait for their turn, and may not end a communicator (koloInvalidUsage). A request has
 * one such function (koloInvalidUsage). */
typedef void (*koloNotifyFunction_t)(koloResult_t result, const char* message, void* context);
KOLO_API koloResult_t koloRequestNotify(koloRequest_t request, koloNotifyFunction_t function, void* context);
/* The handle is dead afterwards. An operation that is not done goes on; its buffers are needed until it is. */
KOLO_API koloResult_t koloRequestFree(koloRequest_t request);

/* ----------------------------------------------------------------- memory */

/* Page-aligned memory that every process on this machine can be given access to. bytes may be 0 (*ptr becomes NULL). */
KOLO_API koloResult_t koloMemAlloc(void** ptr, size_t bytes);
/* The same in the memory of a CUDA device, for communicators on GPUs; device KOLO_HOST: as koloMemAlloc. Not zeroed;
 * bytes are rounded up to what the device gives out (2 MiB). */
KOLO_API koloResult_t koloMemAllocOn(void** ptr, size_t bytes, int device);
/* NULL is allowed. Windows over the memory must be deregistered before. */
KOLO_API koloResult_t koloMemFree(void* ptr);
/* Collective over comm: each rank gives memory of its own (sizes may differ, 0 and NULL included). Operations whose
 * buffers lie in windows are zero-copy, at any offsets; between hosts, messages of more than 16 KiB are. Memory that
 * did not come from koloMemAlloc registers too, but is zero-copy only between ranks of one process;
 * koloWindowIsZeroCopy tells. (Where ranks share cores short blocks may be staged all the same, which is faster there:
 * koloCommGetPlan.) Registering memory twice is harmless. On a GPU memory from koloMemAllocOn and cudaMalloc is
 * zero-copy between processes too; memory from pools (cudaMallocAsync) is staged. Memory must not be freed before its
 * windows are deregistered. */
KOLO_API koloResult_t koloWindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window);
/* As koloWindowRegister, as a request, on host memory only (koloUnsupported on GPUs). *window is written when the
 * request is done, and is NULL where no rank has given memory (bytes are 0 on all), which costs as much as a short
 * all-reduce. */
KOLO_API koloResult_t koloIwindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window,
                                          koloRequest_t* request);
/* The same as koloWindowRegister for host memory that this process has mapped for all ranks itself, such as that of
 * MPI_Win_allocate_shared. The arrays have an entry for each rank and are read before the call returns: where this
 * process sees the rank's memory, and how many bytes it is, as that rank itself says. Zero-copy unless sizes differ, a
 * rank sees another's not (NULL), or some are not reached by shared memory; where it is not, it is staged. The memory
 * must stay mapped until the window is deregistered. koloUnsupported on GPUs. */
KOLO_API koloResult_t koloWindowRegisterMapped(koloComm_t comm, void* const* parts, const size_t* bytes,
                                               koloWindow_t* window);
/* Collective over the window's communicator. A call that is refused (inside a group, for a wrong handle) changes
 * nothing, nor does one in which ranks give different windows (koloMismatch). Of a communicator that has failed, or
 * fails now because others do not answer, the window is taken from the calling rank all the same, and its memory may be
 * freed. */
KOLO_API koloResult_t koloWindowDeregister(koloComm_t comm, koloWindow_t window);
KOLO_API koloResult_t koloWindowIsZeroCopy(koloWindow_t window, int* zeroCopy);

/* ------------------------------------------------------ reduction handles */

typedef enum KOLO_OF_INT { koloScalarHostImmediate = 1 } koloScalarResidence_t;

/* sum of scalar * sendbuf; each rank may give its own scalar, which is read (one element of datatype) by this call. */
KOLO_API koloResult_t koloRedOpCreatePreMulSum(koloRedOp_t* op, const void* scalar, koloDataType_t datatype,
                                               koloScalarResidence_t residence, koloComm_t comm);
/* acc[i] = acc[i] (op) in[i] for count elements, called on the thread that executes the operation. in and acc do not
 * overlap and are aligned to the element's size. Must be associative. Operations, groups and the end of a communicator
 * are refused inside (koloInvalidUsage): they would wait for the operation that the function is part of. */
typedef void (*koloRedFunction_t)(void* acc, const void* in, size_t count, koloDataType_t datatype, void* context);
/* commutative 0: elements are folded strictly in rank order. Works with every datatype. */
KOLO_API koloResult_t koloRedOpCreate(koloRedOp_t* op, koloRedFunction_t function, int commutative, void* context,
                                      koloComm_t comm);
KOLO_API koloResult_t koloRedOpDestroy(koloRedOp_t op, koloComm_t comm);

/* ---------------------------------------------------------------- streams */

/* Operations on one stream run one after the other on a background thread. */
KOLO_API koloResult_t koloStreamCreate(koloStream_t* stream);
/* Returns when all that was enqueued before is done, with the first error among it. */
KOLO_API koloResult_t koloStreamSynchronize(koloStream_t stream);
/* koloSuccess, koloInProgress, or the first error. */
KOLO_API koloResult_t koloStreamQuery(koloStream_t stream);
/* Waits as koloStreamSynchronize does, then frees the stream. */
KOLO_API koloResult_t koloStreamDestroy(koloStream_t stream);

/* An event is a place in a stream: the end of all that was enqueued there before koloEventRecord. One that was never
 * recorded, or was recorded in the NULL stream, has been reached. Recording again moves it; who waits already waits for
 * the place where it was. Events are for host streams. */
KOLO_API koloResult_t koloEventCreate(koloEvent_t* event);
KOLO_API koloResult_t koloEventRecord(koloEvent_t event, koloStream_t stream);
/* koloSuccess when the stream has reached it, else koloInProgress. Errors of operations are the stream's. */
KOLO_API koloResult_t koloEventQuery(koloEvent_t event);
/* Returns when the stream has reached it. */
KOLO_API koloResult_t koloEventSynchronize(koloEvent_t event);
/* What is enqueued on stream from now on begins when the event has been reached. Does not block; a NULL stream does. */
KOLO_API koloResult_t koloStreamWaitEvent(koloStream_t stream, koloEvent_t event);
/* The handle is dead afterwards; streams that wait for the event still do. */
KOLO_API koloResult_t koloEventDestroy(koloEvent_t event);

/* ------------------------------------------------- choices and inspection */

/* Collective in effect: give all ranks the same text. "all_reduce:ring" forces, "all_reduce:^ring" forbids,
 * "all_reduce:ring@1M-" forces from 1 MiB on ("LOW-HIGH", bytes, either may be left out, K, M and G allowed); several
 * by commas; "" returns to the planner's choice. Algorithms: line one_shot two_shot ring biring recursive bruck tree
 * pairwise hierarchical. The planner chooses for an operation that the algorithm asked for cannot carry out: line
 * only carries short ones, and only line, one_shot and two_shot fold all inputs at once, which a reproducible
 * communicator, a reduction that does not commute and an average of 8- or 16-bit integers need. koloExplain tells
 * what fits. */
KOLO_API koloResult_t koloCommSetAlgorithm(koloComm_t comm, const char* text);

typedef struct {
  char algorithm[24];
  char transport[24]; /* of the links used; "self" with one rank */
  int channels;
  int zeroCopy; /* 1: straight between windows; 0: through staging, or by one copy out of the other process's memory
                   where that is faster (KOLO_SINGLE_COPY_BYTES) */
  size_t chunkBytes;
  double predictedUs; /* by the planner's model */
} koloPlan_t;

/* What the planner would do. registered: whether all buffers lie in windows. Where ranks share cores, a barrier behind
 * a broadcast or a scatter is two_shot all the same, through that root, unless another algorithm was asked for, or this
 * one forbidden; and the root of a repeated broadcast or scatter of up to 16 KiB for each rank (128 KiB when it may not
 * wait, koloSetMayWait), 512 KiB in all, puts it into staging, though the others could take it; so does, up to 128 KiB,
 * who gives to the root of a repeated gather and may not wait, or was not offered its buffer before. */
KOLO_API koloResult_t koloCommGetPlan(koloComm_t comm, koloCollective_t collective, size_t count,
                                      koloDataType_t datatype, koloRedOp_t op, int registered, koloPlan_t* plan);
/* The same as text: every candidate, its predicted time, and why the winner won. Writes at most size bytes including
 * the terminator; *needed (may be NULL) gets the full length. comm may be NULL: nranks ranks on this machine. */
KOLO_API koloResult_t koloExplain(koloComm_t comm, int nranks, koloCollective_t collective, size_t count,
                                  koloDataType_t datatype, koloRedOp_t op, int registered, char* text, size_t size,
                                  size_t* needed);

typedef enum KOLO_OF_INT {
  koloInfoBuild = 0,      /* version, compiler, features */
  koloInfoTopology = 1,   /* machine, packages, cores, caches, as the library sees them */
  koloInfoTransports = 2, /* each transport: whether it works here, and if not why */
  koloInfoSettings = 3    /* each setting: value, where it came from, what it means */
} koloInfoTopic_t;

/* A JSON text about this process. Sizes as with koloExplain. */
KOLO_API koloResult_t koloGetInfo(koloInfoTopic_t topic, char* text, size_t size, size_t* needed);

#ifdef __cplusplus
}
#endif

#endif
