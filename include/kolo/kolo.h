/* Kolo: collective communication for host and GPU memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This header is C99. The names follow NCCL, so that porting a program is a rename.
 *
 * GENERAL RULES
 *
 * The comments below refer to these rules by their numbers.
 *
 *  1. Results. A function returns a koloResult_t unless its comment says otherwise; koloSuccess is 0.
 *     koloGetLastError gives the calling thread the reason in words. An output parameter is written only when the call
 *     succeeds. A required pointer that is NULL is refused with koloInvalidPointer. A comment names the errors that a
 *     function returns beyond those of rules 1 to 4.
 *  2. Refused calls. Arguments are checked before anything is sent. A refused call changes nothing and waits for no
 *     other rank, and the communicator stays usable. Rule 12 states the effect on an open group.
 *  3. Counts. A count is in elements of the datatype, never in bytes, unless the parameter's name says "bytes". A count
 *     of 0 is legal everywhere, and the buffer may then be NULL.
 *  4. Handles. A handle is opaque. A handle that was destroyed, or that this library did not make, is refused with
 *     koloInvalidHandle. A handle may be destroyed while other threads use it: their calls end first, or are refused.
 *  5. Memory. The library never frees, keeps or writes the caller's memory beyond what a function's comment says. A
 *     text that a function returns is the library's. The buffers of an operation belong to the operation until it is
 *     complete. The section "collectives" says what holds after an error.
 *  6. Threads. Any thread may call any function. Different communicators may be used by different threads at the same
 *     time. Calls on one communicator from several threads are executed one after the other, in the order in which they
 *     took the communicator. That order must be the same on all ranks. A thread must not be cancelled (pthread_cancel)
 *     inside a call: its process ends, and the other ranks are told. The following functions may be called from any
 *     thread at any time: koloCommRevoke, koloCommAbort, koloCommGetAsyncError, koloCommFailedRanks, koloCommCount,
 *     koloCommUserRank, koloGetErrorString, koloGetLastError.
 *  7. Streams. Every operation takes a stream.
 *     - On a host communicator with the stream NULL, the call blocks until this rank's result is ready.
 *     - On a host communicator with a stream of koloStreamCreate, the call returns at once. The operation runs on the
 *       stream's thread, after all that was enqueued on this stream before.
 *     - On a GPU communicator the stream is a cudaStream_t, cast to koloStream_t. The call enqueues the operation and
 *       returns. A call waits only while its rank is about 100 operations or groups ahead of its device.
 *  8. Collective functions. A function that is called "collective over comm" must be called by all ranks of comm, in
 *     the same order on all ranks.
 *  9. Deadlines. An operation that waits for other ranks longer than its deadline fails with koloTimeout, and the
 *     communicator with it. The deadline is koloConfig_t.timeoutMs, or that of koloSetTimeout.
 * 10. Failure. A communicator fails when a rank dies, when ranks call different operations, when a deadline passes, or
 *     when a rank revokes or aborts it. Operations in progress and all later ones then return the error on all ranks,
 *     and the message names the rank, the operation and the reason. A failed communicator stays failed: koloCommShrink
 *     makes a new one of the survivors, koloCommAbort ends it. The content of an interrupted operation's receive buffer
 *     is undefined.
 * 11. Functions of the caller. Reduction, progress, allocate and notify functions run inside the library. The first
 *     three may not call operations, groups or the end of a communicator (koloInvalidUsage), except where the comment
 *     of the function type allows it. A notify function may start requests. It may not end a communicator
 *     (koloInvalidUsage), and should call nothing that waits. An exception that leaves one of these functions ends the
 *     process, and the other ranks are told.
 * 12. Groups. Between koloGroupStart and koloGroupEnd, operations are collected and not started. A call that is refused
 *     inside a group makes koloGroupEnd return the same error and run nothing.
 * 13. Floating-point mode. The library calculates in the mode of a new program: it rounds to nearest, keeps subnormal
 *     numbers and has no traps, whatever the calling thread has set. That holds inside functions of the caller too. The
 *     thread has its mode back when the call returns.
 * 14. Forks. A forked child has none of its parent's handles. It may use the library for itself if its parent had no
 *     communicator at the fork, and was in no call of another thread. Otherwise its calls return koloInvalidUsage or
 *     koloInvalidHandle.
 * 15. Waiting. A call waits for other ranks, or for operations, only where its comment or that of its section says so.
 *
 * Host communicators may be used to the end of the process, also by destructors of global objects. CUDA ends before
 * these.
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

/* Enumerations have the size of an int in C. C++ is told so. Every number that a C caller may pass is then a value that
 * the library can inspect and refuse. */
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
  koloInvalidOperation = 13,   /* an unknown reduction, or one that is undefined for the datatype */
  koloInvalidRoot = 14,        /* a root or peer outside 0..n-1 */
  koloInvalidHandle = 15,      /* a handle (communicator, stream, request, ...) that is destroyed or not ours */
  koloInvalidOverlap = 16,     /* send and receive buffers overlap other than in place */
  koloInvalidRankCount = 17,   /* fewer than 1 rank, or more than KOLO_MAX_RANKS */
  koloInvalidRank = 18,        /* a rank outside 0..n-1 */
  koloDuplicateRank = 19,      /* two processes claimed one rank, or a list has a rank twice */
  koloUnreachable = 20,        /* the root's address, or a rank, cannot be reached by any means */
  koloInvalidEnvironment = 21, /* an environment variable is malformed; the message names it */
  koloOutOfMemory = 22,        /* memory, handles or other resources are used up */
  koloUnsupported = 23,        /* legal, but not available in this build or for this communicator */
  koloTruncated = 24,          /* a message was longer than the receive buffer */
  koloNumResults = 25
} koloResult_t;

/* Returns the library's version as KOLO_VERSION_CODE.
 * Parameters: version: place for the result. */
KOLO_API koloResult_t koloGetVersion(int* version);

/* Returns a constant English phrase for a result code; never NULL.
 * Parameters: result: any value; an unknown one gives "unknown result code". */
KOLO_API const char* koloGetErrorString(koloResult_t result);

/* ------------------------------------------------------------------ types */

typedef struct koloComm* koloComm_t;
typedef struct koloStream* koloStream_t; /* NULL: the call returns when this rank's result is ready (rule 7) */
typedef struct koloWindow* koloWindow_t;
typedef struct koloRequest* koloRequest_t; /* an operation in progress: see "requests" */
typedef struct koloEvent* koloEvent_t;     /* a place in a stream */

#define KOLO_COMM_NULL ((koloComm_t)0)
#define KOLO_SPLIT_NOCOLOR (-1)
/* koloCommTranslateRanks: not a rank of the other communicator. */
#define KOLO_RANK_NONE (-1)
#define KOLO_ANY_SOURCE (-1)
#define KOLO_ANY_TAG (-1)
/* Tags are 0..KOLO_MAX_TAG. */
#define KOLO_MAX_TAG INT_MAX
/* The most ranks that a communicator may have. src/limits.md says what many ranks need. */
#define KOLO_MAX_RANKS 131072
#define KOLO_UNIQUE_ID_BYTES 128

/* An id for koloCommInitRank. One rank makes it and hands it to the others by any means. Without KOLO_SECRET it
 * contains a secret: any process that has the id may join. */
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

/* Reductions.
 *
 *  - Integers wrap modulo 2^bits.
 *  - float16, bfloat16 and float8 accumulate in float32. A stored value is rounded to nearest even.
 *  - min and max of floating-point values propagate NaN.
 *  - Logical operations read non-zero as true and write 0 or 1. They and min and max are not defined for complex types.
 *  - Bitwise operations are for integers and bool.
 *  - avg and the pre-multiplied sum are not defined for bool.
 *  - complex types have sum, prod, avg and pre-multiplied sum.
 *  - Values from koloNumOps on are handles of koloRedOpCreate and koloRedOpCreatePreMulSum.
 *
 * Partial results. The algorithms line, one_shot and two_shot store nothing but the result. A reproducible communicator
 * uses no others. All other algorithms also store partial results, in the datatype. A partial sum, pre-multiplied sum
 * or product that is too large then becomes infinite (in float8: the largest number), even if the result would be
 * representable. Averages are exempt.
 *
 * Averages. avg divides the sum by the number of ranks. Integers are truncated towards zero.
 *  - int8, uint8, int16, uint16: the result is right even where the sum is too large for the datatype. The inputs of
 *    all ranks are folded at once, which only line, one_shot and two_shot do. One of them carries out the average,
 *    whatever algorithm was asked for. A communicator of more than 64 ranks returns koloUnsupported.
 *  - float16, bfloat16, float8: the result is right even where the sum is too large for the datatype, by every
 *    algorithm. Partial results are stored divided by a power of two. Each store rounds, as in a sum. A partial result
 *    near zero is rounded to a multiple of the datatype's smallest number.
 *  - Wider datatypes: a sum of integers may wrap, and a sum of floats may become infinite. */
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

/* Returns the bytes of one element; 0 for an unknown datatype. */
KOLO_API size_t koloDataTypeSize(koloDataType_t datatype);
/* Returns the name of a datatype, such as "float32"; NULL for an unknown value. */
KOLO_API const char* koloDataTypeName(koloDataType_t datatype);
/* Returns the name of a predefined reduction, such as "sum"; NULL for an unknown value. */
KOLO_API const char* koloRedOpName(koloRedOp_t op);
/* Returns the name of a collective, such as "all_reduce"; NULL for an unknown value. */
KOLO_API const char* koloCollectiveName(koloCollective_t collective);

/* Returns 1 if a predefined reduction is defined for a datatype, else 0. */
KOLO_API int koloRedOpIsDefined(koloRedOp_t op, koloDataType_t datatype);

/* Returns the name of an algorithm, such as "two_shot", as koloCommSetAlgorithm takes it; NULL for a number that no
 * algorithm has. The algorithms have the numbers from 0 on. */
KOLO_API const char* koloAlgorithmName(int algorithm);

/* Returns 1 if an algorithm exists for a collective, else 0. koloExplain tells whether it fits an operation. */
KOLO_API int koloAlgorithmIsDefined(int algorithm, koloCollective_t collective);

/* ---------------------------------------------------------- communicators */

/* Options of a communicator. Start from KOLO_CONFIG_INITIALIZER. A field that keeps its initial value takes the setting
 * of the environment variable named in its comment, or else the library's default. The strings are copied by the call.
 */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  /* KOLO_TIMEOUT_MS. The deadline of an operation in milliseconds (rule 9). 0: no deadline. */
  int timeoutMs;
  /* KOLO_REPRODUCIBLE. 1: every element is folded in rank order 0..n-1, whatever the algorithm. */
  int reproducible;
  /* KOLO_ALGORITHM. Overrides of the planner, as koloCommSetAlgorithm takes them:
   * "all_reduce:biring,broadcast:tree". */
  const char* algorithm;
  /* KOLO_TRANSPORTS. Names of transports in order of preference: "shm,tcp". */
  const char* transports;
  /* Shown in messages, and the key of koloCommByName. The default is "world", or a name made of the name of the
   * communicator that this one is made from. */
  const char* name;
  /* KOLO_DEVICE, a device string without a stream's number, or the number of a CUDA device. KOLO_HOST, or the CUDA
   * device in whose memory this rank's buffers lie; koloDeviceParse makes it from a string. All ranks of a communicator
   * use devices, or none does. Rule 7 states the stream semantics. Ranks that share a device need streams of their own,
   * made with cudaStreamNonBlocking. */
  int device;
  /* KOLO_RESIDENT. Whether a resident kernel, which stays on the GPU, serves small operations in place of launches. The
   * value is the same on all ranks.
   *  0: no.
   *  1: operations on an idle stream, made with cudaStreamNonBlocking.
   *  2: also operations that follow others in one stream, whatever the program enqueues between them. All that precedes
   *     an operation in its stream must be able to run beside the resident kernel, which holds four of the GPU's
   *     multiprocessors: a cooperative launch on all of them would wait for ever.
   * The kernel ends after 200 microseconds without work. Whatever waits for the device to be idle
   * (cudaDeviceSynchronize, cudaFree) may wait that much longer. A rank that cannot have such a kernel logs the reason
   * and launches. */
  int resident;
  /* Each rank's own choice; host memory only. By default 0.
   *  0: a call that is the first of its kind is checked against those of the other ranks before it returns.
   *  1: a rank that only sends (a broadcast's root, say) does not wait for that check if there is room for its data.
   *     A mismatch then shows at a later call, as it does for a repeated call ("collectives", mismatches). */
  int eager;
} koloConfig_t;

#define KOLO_HOST (-1)

#define KOLO_CONFIG_MAGIC 0x4b4f4c4fu
#define KOLO_CONFIG_UNDEF_INT INT_MIN
#define KOLO_CONFIG_INITIALIZER                                                                                        \
  {                                                                                                                    \
    sizeof(koloConfig_t), KOLO_CONFIG_MAGIC, KOLO_VERSION_CODE, KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT, 0, 0, 0, \
        KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT, KOLO_CONFIG_UNDEF_INT                                            \
  }

/* Makes a unique id and starts its rendezvous in this process.
 * The rendezvous listens on the address of KOLO_INTERFACE or, by default, on all addresses of this host. The rank
 * that uses the id as rank 0 need not be in this process. This process must live until all ranks have joined. It relays
 * control messages, as another process does after its end, where all can find one (src/bootstrap/README.md).
 * With KOLO_SECRET set, which all ranks then need, the id contains no secret. Otherwise whoever holds it may join.
 * Parameters: uniqueId: place for the id.
 * Errors: koloSystemError (no socket, no thread). koloInvalidEnvironment, also where the launcher says that the
 *   ranks are on several hosts, and neither KOLO_SECRET nor KOLO_INSECURE=1 is set. */
KOLO_API koloResult_t koloGetUniqueId(koloUniqueId* uniqueId);

/* Makes a communicator of nranks ranks that hold the same id. Collective over these callers.
 * Parameters:
 *   comm      place for the handle; the caller destroys it
 *   nranks    1..KOLO_MAX_RANKS, the same on all ranks
 *   uniqueId  the id of koloGetUniqueId, the same on all ranks
 *   rank      0..nranks-1, each exactly once
 * The call waits until all ranks have joined, for KOLO_INIT_TIMEOUT_MS at most. Inside a group the call returns at
 * once, and koloGroupEnd makes the communicator and writes comm.
 * Errors: koloInvalidRankCount and koloInvalidRank, before anything is sent. koloDuplicateRank, koloUnreachable,
 *   koloTimeout, koloMismatch (settings that must agree differ), koloSystemError. koloInvalidEnvironment: a
 *   malformed setting, or KOLO_SECRET is missing: the id was made where it is set, or the ranks are on several hosts. A
 *   rank whose settings or configuration are wrong ends the attempt of all ranks: the others return koloRemoteError
 *   with its reason. To a rank that lacks KOLO_SECRET nobody listens, so the others wait in vain. */
KOLO_API koloResult_t koloCommInitRank(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank);
/* Makes a communicator as koloCommInitRank does, with options.
 * Parameters: as koloCommInitRank; config: this rank's options, or NULL for the defaults; read by the call.
 * Ranks on GPUs wait up to 20 minutes longer, if the driver of one has to assemble the kernels for its GPU first. */
KOLO_API koloResult_t koloCommInitRankConfig(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank,
                                             const koloConfig_t* config);
/* Makes nranks communicators at once whose ranks are threads of this process.
 * Parameters:
 *   comms   array of nranks handles; entry i becomes rank i; the caller destroys each
 *   nranks  1..KOLO_MAX_RANKS
 *   config  options of all ranks, or NULL
 * One call of one thread makes them all, and waits until they are made.
 * Errors: those of koloCommInitRank. koloInvalidUsage inside a group. On an error no communicator is left. */
KOLO_API koloResult_t koloCommInitAll(koloComm_t* comms, int nranks, const koloConfig_t* config);
/* Joins the job that a launcher described in the environment. Collective over the processes of the job.
 * The first of these that is set counts: KOLO_RANK and KOLO_SIZE (with KOLO_ROOT), torchrun, Slurm, Open MPI, MPICH.
 * With none of them the communicator has one rank. Ranks that run as different users find each other by KOLO_ROOT only.
 * Parameters: comm: place for the handle; the caller destroys it; config: this rank's options, or NULL.
 * The call waits until all ranks have joined, for KOLO_INIT_TIMEOUT_MS at most.
 * Errors: those of koloCommInitRank, koloInvalidEnvironment. koloInvalidUsage inside a group. */
KOLO_API koloResult_t koloCommInitFromEnv(koloComm_t* comm, const koloConfig_t* config);

/* Splits comm: ranks that give the same color form a new communicator. Collective over comm.
 * The new ranks are ordered by key, and among equal keys by the old rank.
 * Parameters:
 *   color    0 or more, or KOLO_SPLIT_NOCOLOR; the latter yields KOLO_COMM_NULL
 *   key      any number
 *   newcomm  place for the handle; the caller destroys it
 *   config   options of the new communicator; NULL: those of comm
 * The call waits until all ranks of comm have called it, for KOLO_INIT_TIMEOUT_MS at most.
 * Errors: a rank that is late, or whose configuration is not valid, makes the call fail on all ranks, and comm goes on.
 *   koloInvalidArgument (color). koloInvalidUsage inside a group. The failure of comm, if it has failed.
 * On one host the new communicator shares the links of comm, and has a part of its memory. For such parts a
 * communicator whose memory is its own has up to 4 GiB of address space for each rank, which takes memory where it
 * is used. A split then takes no file descriptor, no mapping and no thread. All splits of a communicator but the
 * first send no message of the control plane. A communicator shares nothing if its configuration names a device, or
 * other transports than those of comm, or if its process locks all its memory (mlockall). comm may be destroyed before
 * the new communicator. The failure of one is not that of the other, but the death of a rank is a failure of every
 * communicator that has this rank. */
KOLO_API koloResult_t koloCommSplit(koloComm_t comm, int color, int key, koloComm_t* newcomm,
                                    const koloConfig_t* config);
/* Makes a communicator of the ranks of comm that are not excluded, and live. Collective over these ranks.
 * It works when comm has failed or was revoked. The callers first agree on who is left, as koloCommAgree does. So a
 * dead rank is excluded whether the callers know of its death or not.
 * Parameters:
 *   excludeRanks  array of excludeCount ranks of comm, without the caller; read by the call. Ranks that live are given
 *                 by all callers alike. Dead ones need not be given.
 *   excludeCount  0..n-1
 *   newcomm       place for the handle; the caller destroys it
 *   config        options; NULL: those of comm
 * The call waits until all remaining ranks have called it. Each wait for them ends after KOLO_INIT_TIMEOUT_MS.
 * Errors: koloInvalidCount, koloInvalidRank. koloInvalidUsage if a rank excludes itself, and inside a group.
 *   - Those of koloCommAgree. koloAborted names a rank that has aborted comm: it has to be excluded, also if it has
 *     died since. koloMismatch if the lists of the callers differ in ranks that live, after KOLO_INIT_TIMEOUT_MS, and
 *     koloTimeout on some ranks.
 *   - Those of koloCommInitRank. koloRemoteError if a rank dies after the ranks have agreed: all survivors may call
 *     koloCommShrink again.
 * The method is that of MPIX_Comm_shrink of ULFM (Open MPI 5). */
KOLO_API koloResult_t koloCommShrink(koloComm_t comm, const int* excludeRanks, int excludeCount, koloComm_t* newcomm,
                                     const koloConfig_t* config);
/* Makes an id by which new processes join the ranks of comm, in koloCommGrow.
 * One rank of comm calls it, and hands the id to the new processes by any channel. All that koloGetUniqueId says of its
 * id holds for this one: the process of this rank must live until all have joined, and relays the control messages of
 * the new communicator. An id serves one koloCommGrow. Whoever has it may join by any number. An id that nobody uses
 * keeps a listening socket until the process ends.
 * Parameters: uniqueId: place for the id.
 * Errors: those of koloGetUniqueId. The failure of comm, if it has failed. */
KOLO_API koloResult_t koloCommGetUniqueId(koloComm_t comm, koloUniqueId* uniqueId);
/* Makes a larger communicator: of all ranks of comm, which keep their numbers, and of new processes. Collective over
 * both. comm stays as it is; the caller destroys it when it is not needed any more.
 * Parameters:
 *   comm      a rank of it: the communicator that grows; a new process: KOLO_COMM_NULL
 *   nranks    the number of ranks afterwards, the same for all: more than comm has, and KOLO_MAX_RANKS at most
 *   uniqueId  the id of koloCommGetUniqueId. A new process gives it. Of the ranks of comm, the one that has made it
 *             gives it; the others give NULL or the same id.
 *   rank      a rank of comm: -1, or its number; a new process: a number that comm does not have, below nranks, each
 *             exactly once
 *   newcomm   place for the handle; the caller destroys it
 *   config    options; NULL: those of comm, and for a new process the settings of the environment
 * The call waits until all have called it. Each wait for others ends after KOLO_INIT_TIMEOUT_MS. On the ranks of comm
 * it has a place in the order of operations on comm (rule 6).
 * Errors: none of them makes comm fail.
 *   - Before anything is sent: koloInvalidRank, also if a new process gives a number that comm has.
 *     koloInvalidRankCount if nranks is not larger than comm. koloInvalidUsage inside a group.
 *   - On all ranks of comm, and the new processes are told if the rank with the id calls: koloMismatch if they give
 *     different nranks or ids.
 *     koloInvalidArgument if none of them gives an id, or not one of koloCommGetUniqueId. The failure of comm, also if
 *     a rank of it dies during the call.
 *   - Those of koloCommInitRank. koloInvalidRankCount if a new process gives another nranks. koloTimeout names the new
 *     ranks that have not come. koloRemoteError if a new process dies.
 * The method is that of ncclCommGrow (NCCL 2.29). */
KOLO_API koloResult_t koloCommGrow(koloComm_t comm, int nranks, const koloUniqueId* uniqueId, int rank,
                                   koloComm_t* newcomm, const koloConfig_t* config);
/* Makes a group: a communicator of listed ranks of parent. Collective over the listed ranks alone.
 * Ranks of parent that are not in the list do not call it, and are not waited for. The list's order is the order of the
 * new ranks. For example, with the list {1, 0} rank 1 of parent becomes rank 0, the root of a broadcast from 0.
 * Parameters:
 *   ranks    array of nranks distinct ranks of parent, the caller's among them; read by the call; all members give the
 *            same list
 *   nranks   1..n
 *   name     the name of the group, the same on all members; NULL or "": that of config, or else one made of the name
 *            of parent and the list
 *   newcomm  place for the handle; the caller destroys it
 *   config   options of the new communicator; NULL: those of parent
 * If the group exists already, the call gives the same handle, which then has one owner more.
 *  - A group exists if all members have one of the same parent, list and name, and if it has neither failed nor been
 *    finalised. If some member has destroyed its handle, the members make a new group.
 *  - Of config, only the name counts then.
 *  - Each owner destroys the handle once. The last of these calls ends the group.
 *  - koloCommAbort and koloCommFinalize are for all owners.
 * The call waits until all members have called it. Each wait for them ends after KOLO_INIT_TIMEOUT_MS. The call has a
 * place in the order of operations on parent (rule 6).
 * Errors: none of them makes parent fail.
 *   - Before anything is sent: koloInvalidCount (nranks), koloInvalidRank, koloDuplicateRank. koloInvalidUsage if the
 *     caller is not in the list, and inside a group of operations.
 *   - On all members: koloMismatch if two members list each other and their lists differ, or if the names differ.
 *     koloRemoteError if a member has died. The reason of a member whose configuration is not valid. The failure of
 *     parent that some rank has reported.
 *   - On the members that have come: koloTimeout if another member does not come.
 * On one host the group shares links and memory as a split does. parent and the group are independent as after
 * koloCommSplit. A rank outside the list may be dead. */
KOLO_API koloResult_t koloCommCreateGroup(koloComm_t parent, const int* ranks, int nranks, const char* name,
                                          koloComm_t* newcomm, const koloConfig_t* config);
/* Makes the communicator along some axes of a mesh. Collective over its members alone.
 * A mesh gives the ranks of comm coordinates in row-major order: the last coordinate varies fastest. The members are
 * the ranks whose coordinates equal the caller's on all axes that are not listed. They are ordered by their coordinates
 * on the listed axes, the last listed one varying fastest. So all axes in their order give the order of comm.
 * Parameters:
 *   dims     array of ndim lengths of axes, each 1 or more, whose product is the number of ranks of comm
 *   ndim     1..32
 *   axes     array of naxes distinct axes, each 0..ndim-1
 *   naxes    1..ndim
 *   newcomm  place for the handle; the caller destroys it
 *   config   options of the new communicator; NULL: those of comm
 *   The arrays are read by the call. All members give the same.
 * The communicator is a group of koloCommCreateGroup: if it is made twice, it is the same one. It also has a shape: the
 * lengths of the listed axes, without those of 1, if two or more lengths remain.
 *  - koloAllReduce can go along the axes of the shape (algorithm mesh_ring).
 *  - Two groups of the same list are different communicators if their shapes differ, or if only one has a shape.
 *  - A communicator that is made from this one does not inherit the shape.
 * Errors: as koloCommCreateGroup. koloInvalidCount (ndim, naxes), koloInvalidArgument (dims, axes). koloMismatch also
 *   if the shapes differ. */
KOLO_API koloResult_t koloMeshComm(koloComm_t comm, const int* dims, int ndim, const int* axes, int naxes,
                                   koloComm_t* newcomm, const koloConfig_t* config);
/* Tells the caller's neighbours along some axes of a mesh whose ends are joined (a torus).
 * Along several axes the ranks of koloMeshComm form one ring, in their order.
 * Parameters:
 *   dims, ndim, axes, naxes  as koloMeshComm
 *   before, after            places for the ranks in comm; both are the caller's own on a ring of one
 * Errors: as koloMeshComm, for the arguments. */
KOLO_API koloResult_t koloMeshNeighbors(koloComm_t comm, const int* dims, int ndim, const int* axes, int naxes,
                                        int* before, int* after);
/* Finds a communicator of this process by its name.
 * Several communicators may have the name. Communicators that have not failed come first. Among these, those that the
 * calling thread has made come first (ranks may be threads of one process).
 * Parameters:
 *   name  the name: koloConfig_t.name, or the argument of koloCommCreateGroup
 *   comm  place for the handle, which stays its owner's: the caller does not destroy it
 * Errors: koloInvalidArgument if there is none. koloInvalidUsage if more than one remains. */
KOLO_API koloResult_t koloCommByName(const char* name, koloComm_t* comm);
/* Translates ranks of one communicator to ranks of another one.
 * Parameters:
 *   from, to  communicators of one unique id, or derived from such
 *   ranks     array of nranks ranks of from
 *   nranks    0 or more
 *   out       place for nranks results: the rank in `to` of the same process or thread, or KOLO_RANK_NONE; may be the
 *             same memory as ranks
 * Errors: koloInvalidCount, koloInvalidRank. koloInvalidArgument if the communicators come from different unique ids.
 */
KOLO_API koloResult_t koloCommTranslateRanks(koloComm_t from, const int* ranks, int nranks, koloComm_t to, int* out);
/* Completes all operations of comm on this rank; afterwards operations are refused and queries are answered.
 * The call waits until the operations enqueued here have finished, and until all ranks have entered those in which this
 * rank only sent. It does not wait for receives without a message ("requests", failure). After koloSetMayWait(0) a call
 * that would wait for other ranks returns koloInProgress, and has done nothing. comm stays the caller's, to be
 * destroyed.
 * Errors: the failure of comm. koloInvalidUsage inside a group. */
KOLO_API koloResult_t koloCommFinalize(koloComm_t comm);
/* Finalises comm if that was not done, and frees it.
 * A group that was made more than once has several owners (koloCommCreateGroup). The call of the last owner finalises
 * and frees it. The calls of the others return at once.
 * Parameters: comm: the handle is dead afterwards, also if the call returns an error. Its windows and reductions go
 *   with it. The exception is a call that is refused (koloInvalidUsage, see Errors): it changes nothing.
 * The call waits as koloCommFinalize does, and until calls of other threads on comm have returned.
 * Errors: on a host communicator, the failure of comm if it ends an operation that the call waits for. An earlier
 *   failure is not returned: koloCommGetAsyncError, called before, tells it. On GPUs, any failure of comm. The call is
 *   refused with koloInvalidUsage inside a group and inside a function of the caller (rule 11). */
KOLO_API koloResult_t koloCommDestroy(koloComm_t comm);
/* Makes every operation of comm, on all ranks, return koloAborted in bounded time. comm stays, as one that has failed
 * (rule 10). If comm has failed before, nothing changes.
 * Parameters: reason: more words for the message on all ranks; NULL: none.
 * The call waits until the thread of the control plane has sent it, and not for other ranks. It may be called inside a
 * function of the caller (rule 11). A progress function so ends the operation that it is part of. The method is that of
 * MPIX_Comm_revoke of ULFM (Open MPI 5). */
KOLO_API koloResult_t koloCommRevoke(koloComm_t comm, const char* reason);
/* Makes every operation of comm, on all ranks, return koloAborted in bounded time; then frees comm.
 * Parameters: comm: the handle is dead afterwards.
 * The call never waits for other ranks. It waits for calls of other threads on comm, and for operations on streams, for
 * 50 milliseconds at most. What takes longer keeps its buffers (rule 5), and comm is freed behind it. Examples are a
 * function of the caller (rule 11), and an operation on a stream that waits for one of another communicator.
 * Errors: koloInvalidUsage inside a group and inside a function of the caller (rule 11). */
KOLO_API koloResult_t koloCommAbort(koloComm_t comm);
/* Agrees on flags among the ranks of comm that live. Collective over these ranks.
 * It works when comm has failed or was revoked, and gives all survivors the same flags and the same result, whoever
 * dies meanwhile, the process that relays control messages (koloGetUniqueId) included. Where a host falls silent, only
 * more than half of the ranks that lived go on, or half with the first of them. The others get koloUnreachable. So may
 * a rank whose connection to the relaying process breaks while that one lives.
 * For flags of a communicator that works, koloVote is faster.
 * Parameters: flags: the caller's flags, in host memory on every communicator. The call writes the bitwise AND of the
 * flags of all ranks that took part. A rank that dies before it has given its flags takes no part.
 * Result:
 *   - koloSuccess if all ranks of comm took part but those which koloCommFailedRanks had told of on each rank that took
 *     part. So that function acknowledges failures, as MPIX_Comm_ack_failed does.
 *   - koloRemoteError otherwise: flags are agreed all the same. koloCommFailedRanks then tells on every rank at least
 *     which ranks took no part.
 * The call waits until all ranks that live have called it. Each wait for them ends after KOLO_INIT_TIMEOUT_MS. It has a
 * place in the order of operations on comm (rule 6), and lends others its turn while it waits.
 * Errors, with which flags are not written:
 *   - koloAborted on all ranks if one of them has aborted comm, also if it has died since. If it aborts comm when all
 *     have called, maybe on that rank alone.
 *   - koloTimeout names the ranks that live and have not called. koloMismatch if a rank calls koloCommShrink; if that
 *     one excludes ranks that live, after KOLO_INIT_TIMEOUT_MS, and koloTimeout on some ranks.
 *   - koloUnreachable if a rank has left the job, or the process that relays control messages did not answer in time,
 *     or has ended and no other has its place. In the second case the rank that got no answer takes part in no
 *     agreement on comm any more, and the others are told.
 *   - koloOutOfMemory on a rank that has no memory for its part, and that or koloUnreachable on the others. If the
 *     memory is missing when the ranks have agreed, on that rank alone, which takes part in no agreement any more.
 *   - koloInvalidUsage inside a group.
 * The method is that of MPIX_Comm_agree of ULFM (Open MPI 5). */
KOLO_API koloResult_t koloCommAgree(koloComm_t comm, uint64_t* flags);
/* Tells whether comm has failed.
 * Parameters: asyncError: place for koloSuccess, or for the error that comm has failed with. */
KOLO_API koloResult_t koloCommGetAsyncError(koloComm_t comm, koloResult_t* asyncError);
/* Tells which ranks of comm have died, as far as this rank has been told, and acknowledges that (koloCommAgree).
 * koloCommShrink leaves them out. A rank whose host has been silent for KOLO_SILENCE_MS counts as dead where more than
 * half of the ranks are left (koloCommAgree), and so does one whose connection to the relaying process
 * (koloGetUniqueId) has broken. A rank that counts as dead on the others, or that has too few others with it, is told
 * of itself, and agrees on nothing any more. Ranks that live are not among them otherwise, even if comm has failed
 * because of them: ranks that have destroyed comm, and ranks to which another link has broken.
 * Parameters:
 *   ranks  place for n ranks of comm; the call writes as many as have died, in ascending order
 *   count  place for their number */
KOLO_API koloResult_t koloCommFailedRanks(koloComm_t comm, int* ranks, int* count);
/* Returns a message: what comm failed with, if comm is given and has failed; else the calling thread's last error.
 * Parameters: comm: a communicator, or NULL.
 * The text is never NULL, and valid until the thread's next failing call. */
KOLO_API const char* koloGetLastError(koloComm_t comm);
/* Tells the number of ranks of comm.
 * Parameters: count: place for the result. */
KOLO_API koloResult_t koloCommCount(koloComm_t comm, int* count);
/* Tells the rank of the caller in comm.
 * Parameters: rank: place for the result. */
KOLO_API koloResult_t koloCommUserRank(koloComm_t comm, int* rank);
/* Tells how many cores (hardware threads) of hosts the ranks of comm may use, all together.
 * The number follows from the ranks' affinity and the quotas of their control groups when comm was made. If it is less
 * than koloCommCount, ranks share cores.
 * Parameters: cores: place for the result. */
KOLO_API koloResult_t koloCommCores(koloComm_t comm, int* cores);
/* A progress function: the library calls it again and again from a thread that has polled in vain for a while.
 * It must return soon. It may not call operations, groups, the end of a communicator or koloCommSetProgress
 * (koloInvalidUsage). It may call koloCommRevoke. */
typedef void (*koloProgressFunction_t)(void* context);
/* Sets the progress function of comm, for programs in which another library must make progress while a thread waits.
 * An example is a library on whose message a peer waits before the peer comes to the operation.
 * Parameters:
 *   function  NULL, the initial state: none
 *   context   passed to the function; must live as long as comm
 * The call waits until operations that were called on comm before have ended. On GPUs calls do not wait, and the
 * function is never called.
 * Errors: koloInvalidUsage inside a group and inside a function of the caller. */
KOLO_API koloResult_t koloCommSetProgress(koloComm_t comm, koloProgressFunction_t function, void* context);
/* Sets the watch function of comm: a progress function for which nobody waits.
 * A thread that waits for operations sleeps longer and longer all the same, and calls the function between two sleeps,
 * that is, every 10 milliseconds or more often. An example is a function that looks for signals, and calls
 * koloCommRevoke. It is not called in calls that wait for the ranks otherwise (koloCommSplit, windows and the like).
 * Parameters, waiting and errors are those of koloCommSetProgress. */
KOLO_API koloResult_t koloCommSetWatch(koloComm_t comm, koloProgressFunction_t function, void* context);
/* Says whether operations of the calling thread may wait for other ranks.
 * With 0, an operation without a stream that would wait returns koloInProgress. It has done nothing then. The caller
 * calls it again, or starts it as a request, before any other operation of the communicator.
 *  - A collective is done at once if this rank only sends in it (a broadcast's root, say), if there is room for its
 *    data, which no rank is to read where it lies, and if the call may run ahead of the other ranks. A call that
 *    repeats one of the communicator's last calls may do so. Any call may if koloConfig_t.eager is 1.
 *  - koloCommFinalize and koloVote return koloInProgress where they would wait for other ranks.
 *  - Groups, operations on streams and all other functions wait as they do with 1. An operation also waits behind one
 *    that another thread, or a stream, has begun on the communicator.
 * Parameters: mayWait: 1, the initial state, or 0.
 * The setting is the calling thread's. On GPUs operations do not wait, and it changes nothing but koloVote.
 * Errors: koloInvalidArgument. */
KOLO_API koloResult_t koloSetMayWait(int mayWait);

/* Sets the deadline of the operations that the calling thread calls from now on, in place of their communicator's.
 * It holds for blocking operations, requests and operations on streams. A message that was started as a request waits
 * from its call on. Every other operation waits from the begin of its execution.
 * Parameters: timeoutMs: milliseconds; 0: no deadline; -1, the initial state: koloConfig_t.timeoutMs.
 * The setting is the calling thread's. On GPUs it is ignored, but for koloRecvArray.
 * Errors: koloInvalidArgument. */
KOLO_API koloResult_t koloSetTimeout(int timeoutMs);

/* ------------------------------------------------------------ collectives */
/* What holds for every collective. n is the number of ranks of comm. "Fold" means: combined over all ranks by op.
 *
 * Waiting: the stream says when a call returns (rule 7). On GPUs the result is ready when the stream has reached it.
 * Buffers: sendbuf is read, recvbuf is written. They may be the same memory only as "In place" says, and must not
 *   overlap otherwise (koloInvalidOverlap). On a GPU communicator they lie in memory of the rank's device.
 * Arguments that must agree on all ranks: the collective, count, datatype, op and root, unless stated otherwise.
 * Errors: koloInvalidCount, koloInvalidDatatype, koloInvalidOperation, koloInvalidRoot, koloInvalidPointer and
 *   koloInvalidOverlap, before anything is sent. koloInvalidUsage after koloCommFinalize. The failure of comm (rule
 *   10). koloMismatch (below). koloInProgress (koloSetMayWait).
 *
 * Mismatches. Ranks that call different things all get koloMismatch.
 *  - A rank whose own part was over before that gets it from one of its next calls, koloCommFinalize and
 *    koloCommDestroy included.
 *  - For example, rank 1 has its data from the root and has returned. Rank 2 then calls something else.
 *  - Another example is a rank that only sends (the root of a broadcast or scatter, the others in a reduce or gather)
 *    and repeats one of its last calls: such a rank may run up to 32 calls ahead of the others.
 *
 * Buffers after an error. A call that returns an error gives its buffers back.
 *  - Peers may still read there. On the host, what they read then does not count.
 *  - On GPUs nobody notices that such a buffer was written. There, buffers must not be written before all ranks have
 *    returned.
 *  - Windows of ranks that are threads of one process must not be freed before all these ranks have returned.
 *  - Nobody writes to ordinary memory that was given back. The exception is a peer that is stopped (SIGSTOP, a
 *    debugger) for two seconds in the middle of writing.
 *
 * Single copy. The kernel may read and write long buffers in ordinary memory directly (KOLO_SINGLE_COPY_BYTES).
 *  - It refuses special mappings (secret memory, memory of devices).
 *  - It also refuses the memory of a process that is not dumpable (prctl PR_SET_DUMPABLE, a change of user). Such a
 *    rank's memory is staged from that moment on.
 *
 * Adjoints. "Adjoint" names the call that carries a gradient back, if this one carried a value forth: with the gradient
 * of recvbuf as sendbuf, it gives the gradient of sendbuf. The adjoint of a reduction is stated for koloSum.
 * Where only some ranks have a gradient, koloVote tells all of them before they call.
 *
 * Sources. The files src/algorithms/NAME.h name the publications that the algorithms follow. koloExplain tells which
 * algorithm an operation takes. */

/* All-reduce: recvbuf[i] is the fold of all ranks' sendbuf[i], on every rank.
 * Parameters: sendbuf, recvbuf: count elements each.
 * In place: sendbuf == recvbuf.
 * Adjoint: koloAllReduce. */
KOLO_API koloResult_t koloAllReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                    koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* Reduce: recvbuf[i] of the root is the fold of all ranks' sendbuf[i].
 * Parameters: sendbuf: count elements; recvbuf: count elements on the root, elsewhere not touched and may be NULL.
 * In place: sendbuf == recvbuf, on the root.
 * Adjoint: koloBroadcast, with the same root. */
KOLO_API koloResult_t koloReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                 koloRedOp_t op, int root, koloComm_t comm, koloStream_t stream);
/* Broadcast: copies the root's sendbuf into every rank's recvbuf.
 * Parameters: sendbuf: count elements, read on the root only; recvbuf: count elements.
 * In place: sendbuf == recvbuf.
 * Adjoint: koloReduce, with the same root. */
KOLO_API koloResult_t koloBroadcast(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, int root,
                                    koloComm_t comm, koloStream_t stream);
/* All-gather: block i of every rank's recvbuf is the sendbuf of rank i.
 * Parameters: sendbuf: sendcount elements; recvbuf: n blocks of sendcount elements.
 * In place: sendbuf == recvbuf + rank * sendcount.
 * Adjoint: koloReduceScatter. */
KOLO_API koloResult_t koloAllGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                    koloComm_t comm, koloStream_t stream);
/* Reduce-scatter: recvbuf is block `rank` of the fold of all ranks' sendbuf.
 * Parameters: sendbuf: n blocks of recvcount elements; recvbuf: recvcount elements.
 * In place: recvbuf == sendbuf + rank * recvcount.
 * Adjoint: koloAllGather. */
KOLO_API koloResult_t koloReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                        koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* All-to-all: block j of rank i's sendbuf becomes block i of rank j's recvbuf.
 * Parameters: sendbuf, recvbuf: n blocks of count elements each.
 * In place: sendbuf == recvbuf.
 * Adjoint: koloAllToAll. */
KOLO_API koloResult_t koloAllToAll(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                   koloComm_t comm, koloStream_t stream);
/* Gather: block i of the root's recvbuf is the sendbuf of rank i.
 * Parameters: sendbuf: sendcount elements; recvbuf: n blocks of sendcount elements on the root. Elsewhere recvbuf is
 *   not touched, and may be NULL.
 * In place: sendbuf == recvbuf + root * sendcount, on the root.
 * Adjoint: koloScatter, with the same root. */
KOLO_API koloResult_t koloGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                 int root, koloComm_t comm, koloStream_t stream);
/* Scatter: recvbuf of rank i is block i of the root's sendbuf.
 * Parameters: sendbuf: n blocks of recvcount elements, read on the root only; recvbuf: recvcount elements.
 * In place: recvbuf == sendbuf + root * recvcount, on the root.
 * Adjoint: koloGather, with the same root. */
KOLO_API koloResult_t koloScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                  int root, koloComm_t comm, koloStream_t stream);
/* Barrier: is complete when every rank has entered. */
KOLO_API koloResult_t koloBarrier(koloComm_t comm, koloStream_t stream);
/* Vote: the ranks agree on 64 questions at once. Collective over comm.
 * Bit i of *any is set if some rank has set it; bit i of *all is set if all ranks have. An example: whether some rank,
 * or every rank, has a gradient.
 * Parameters:
 *   mine      the caller's bits
 *   any, all  places for the results, in host memory on every communicator; not NULL
 * The call waits until all ranks have called it, and the results are there when it returns.
 *  - On a host communicator it is an all-reduce of two koloUint64 by koloBitOr. If another rank calls that all-reduce,
 *    the two meet.
 *  - On a GPU communicator it goes through the control plane, and waits for nothing in streams. Each wait for other
 *    ranks ends after KOLO_INIT_TIMEOUT_MS.
 * Errors: those of the collectives. koloInvalidUsage inside a group. */
KOLO_API koloResult_t koloVote(uint64_t mine, uint64_t* any, uint64_t* all, koloComm_t comm);

/* Forms with a count for each rank. An array of counts or displacements (displs) has one entry for each rank, in
 * elements. displs NULL means that the blocks follow one another. The arrays are the caller's and are read before the
 * call returns. */

/* All-gather with counts: block i of every rank's recvbuf is the sendbuf of rank i.
 * Parameters:
 *   sendbuf         counts[rank] elements
 *   recvbuf         block i: counts[i] elements at displs[i]
 *   counts, displs  the same on all ranks
 * In place: sendbuf == recvbuf + displs[rank].
 * Adjoint: koloReduceScatterv, with the same counts. */
KOLO_API koloResult_t koloAllGatherv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                     koloDataType_t datatype, koloComm_t comm, koloStream_t stream);
/* Reduce-scatter with counts: recvbuf is block `rank` of the fold of all ranks' sendbuf.
 * Parameters:
 *   sendbuf         block i: counts[i] elements at displs[i]
 *   recvbuf         counts[rank] elements
 *   counts, displs  the same on all ranks
 * In place: recvbuf == sendbuf + displs[rank].
 * Adjoint: koloAllGatherv, with the same counts. */
KOLO_API koloResult_t koloReduceScatterv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                         koloDataType_t datatype, koloRedOp_t op, koloComm_t comm, koloStream_t stream);
/* All-to-all with counts: block j of rank i's sendbuf becomes block i of rank j's recvbuf.
 * Parameters:
 *   sendbuf  block j: sendcounts[j] elements at senddispls[j]
 *   recvbuf  block i: recvcounts[i] elements at recvdispls[i]
 *   sendcounts[j] of rank i must equal recvcounts[i] of rank j. The displacements are each rank's own.
 * In place: no.
 * Adjoint: koloAllToAllv, with the counts and displacements of both sides exchanged. */
KOLO_API koloResult_t koloAllToAllv(const void* sendbuf, const size_t* sendcounts, const size_t* senddispls,
                                    void* recvbuf, const size_t* recvcounts, const size_t* recvdispls,
                                    koloDataType_t datatype, koloComm_t comm, koloStream_t stream);
/* Gather with counts: block i of the root's recvbuf is the sendbuf of rank i.
 * Parameters:
 *   sendbuf             sendcount elements; sendcount must equal the root's recvcounts[rank]
 *   recvbuf             on the root, block i: recvcounts[i] elements at displs[i]
 *   recvcounts, displs  read on the root only
 * In place: sendbuf == recvbuf + displs[root], on the root.
 * Adjoint: koloScatterv, with the same root and counts. */
KOLO_API koloResult_t koloGatherv(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                                  const size_t* displs, koloDataType_t datatype, int root, koloComm_t comm,
                                  koloStream_t stream);
/* Scatter with counts: recvbuf of rank i is block i of the root's sendbuf.
 * Parameters:
 *   sendbuf             on the root, block i: sendcounts[i] elements at displs[i]
 *   sendcounts, displs  read on the root only
 *   recvbuf             recvcount elements; recvcount must equal the root's sendcounts[rank]
 * In place: recvbuf == sendbuf + displs[root], on the root.
 * Adjoint: koloGatherv, with the same root and counts. */
KOLO_API koloResult_t koloScatterv(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                                   size_t recvcount, koloDataType_t datatype, int root, koloComm_t comm,
                                   koloStream_t stream);

/* --------------------------------------------------------- point to point */
/* What holds for every message.
 *
 * Order: messages between two ranks with one tag arrive in the order sent.
 * Waiting: the stream says when a call returns (rule 7). A send may return before the receiver has called.
 * GPUs: messages have tag 0 and a stated source, and match in their order (koloUnsupported otherwise).
 * Errors: koloInvalidCount, koloInvalidDatatype, koloInvalidRoot (peer), koloInvalidArgument (tag), koloInvalidPointer.
 *   koloInvalidUsage after koloCommFinalize. The failure of comm (rule 10). */

/* What koloRecvTag and koloIrecv tell about a message. */
typedef struct {
  int source;
  int tag;
  size_t count; /* elements of the receiver's datatype */
} koloRecvStatus_t;

/* Sends a message with tag 0 to one rank.
 * Parameters: sendbuf: count elements, read; peer: 0..n-1.
 * Adjoint: koloRecv from the peer. */
KOLO_API koloResult_t koloSend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream);
/* Receives exactly what the peer's koloSend sent, tag 0.
 * Parameters: recvbuf: count elements, written; peer: 0..n-1.
 * Errors: koloMismatch if count or datatype differ from the sender's.
 * Adjoint: koloSend to the peer. */
KOLO_API koloResult_t koloRecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream);
/* Sends a message with a tag.
 * Parameters: as koloSend; tag: 0..KOLO_MAX_TAG.
 * Adjoint: koloRecvTag from the peer. */
KOLO_API koloResult_t koloSendTag(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloComm_t comm, koloStream_t stream);
/* Receives a message of up to count elements, of a given or any source and tag.
 * Parameters:
 *   recvbuf  count elements; as many are written as the message has
 *   peer     0..n-1, or KOLO_ANY_SOURCE
 *   tag      0..KOLO_MAX_TAG, or KOLO_ANY_TAG
 *   status   NULL, or a place that is written when the message has arrived; must live until then
 * Errors: koloTruncated if the message is longer than count.
 * Adjoint: koloSendTag to the source that status names. */
KOLO_API koloResult_t koloRecvTag(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloRecvStatus_t* status, koloComm_t comm, koloStream_t stream);

/* ----------------------------------------------------------------- groups */

/* Opens a group of the calling thread: operations are collected until koloGroupEnd. Groups nest.
 * Errors: koloInvalidUsage inside a reduction, progress or allocate function. */
KOLO_API koloResult_t koloGroupStart(void);
/* Closes a group. The end of the outermost group starts all its operations together.
 * No order inside the group can deadlock, on one or on several communicators. For each communicator, all of a rank's
 * operations in a group must go to one stream.
 * With a NULL stream the call waits until all operations of the group are done (rule 7).
 * Errors: koloInvalidUsage without an open group, and for two streams on one communicator. If a call inside the group
 *   was refused, the first such error, and nothing runs. The errors of the operations. */
KOLO_API koloResult_t koloGroupEnd(void);

/* --------------------------------------------------------------- requests */
/* A request stands for an operation that a call has started and does not wait for. Messages and collectives have such a
 * form, and so have koloWindowRegister and groups. Calls over lists, along axes and of buckets become requests as
 * groups: koloGroupStart, the call, koloIgroupEnd. koloVote and the functions for arrays whose shape travels with them
 * have no such form. What holds for all requests:
 *
 * Communicators: on host memory only (koloUnsupported). On GPUs every call is nonblocking already.
 * Buffers: the buffers, and the place for a receive's status, belong to the operation until it is done. Arrays of
 *   counts and displacements are read by the call.
 * Groups: the calls are refused inside a group (koloInvalidUsage). koloIgroupEnd makes a request of a group.
 *
 * Order
 *  - The collectives of a communicator are executed one at a time, in the order of their calls. It does not matter
 *    whether they are requests, blocking calls or operations on streams.
 *  - Messages are matched when they are called. A posted receive, or a collective that waits for other ranks, keeps no
 *    later message of the communicator from going.
 *  - A request that follows an operation on a stream, on the same communicator, begins when that operation has ended.
 *    If the operation is a message, the request begins when the message has begun.
 *
 * Progress
 *  - A thread that waits for a request makes progress for all requests of its communicator.
 *  - While no thread waits, a thread of the communicator takes over within 4 milliseconds. It takes a collective with
 *    koloRequestNotify at once.
 *  - This thread is started with the first request that is not done when its call returns. It sleeps while there are no
 *    requests.
 *  - Messages make progress too while another thread of this rank is in a call that waits for the ranks otherwise:
 *    koloCommSplit, koloCommShrink, koloCommGrow, koloCommAgree, koloCommCreateGroup, koloMeshComm, and those that
 *    register and deregister windows. Collectives wait for the end of such a call.
 *
 * Failure
 *  - Arguments are checked by the call. A refused call makes no request.
 *  - A failure of the communicator is that of all its requests. It shows by itself, also while no thread waits.
 *  - koloCommFinalize and koloCommDestroy wait for requests. A receive for which no message has come ends with
 *    koloAborted, or with koloRemoteError if the rank that it waits for has ended its communicator before.
 *
 * Handles: the caller gives every request back by koloRequestFree. Several threads may call the functions below for one
 *   request at the same time; koloRequestFree ends after the others. A process has as many requests at a time as its
 *   memory allows, up to 16 million. The next call returns koloOutOfMemory.
 *
 * A function that starts a request does not wait, and takes a place for the request's handle in place of the stream.
 * Otherwise it is like the function that its comment names. */

/* Starts koloSendTag. */
KOLO_API koloResult_t koloIsend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloComm_t comm, koloRequest_t* request);
/* Starts koloRecvTag. */
KOLO_API koloResult_t koloIrecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloRecvStatus_t* status, koloComm_t comm, koloRequest_t* request);

/* Starts koloAllReduce. */
KOLO_API koloResult_t koloIallReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                     koloRedOp_t op, koloComm_t comm, koloRequest_t* request);
/* Starts koloReduce. */
KOLO_API koloResult_t koloIreduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                  koloRedOp_t op, int root, koloComm_t comm, koloRequest_t* request);
/* Starts koloBroadcast. */
KOLO_API koloResult_t koloIbroadcast(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                     int root, koloComm_t comm, koloRequest_t* request);
/* Starts koloAllGather. */
KOLO_API koloResult_t koloIallGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                     koloComm_t comm, koloRequest_t* request);
/* Starts koloReduceScatter. */
KOLO_API koloResult_t koloIreduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                         koloRedOp_t op, koloComm_t comm, koloRequest_t* request);
/* Starts koloAllToAll. */
KOLO_API koloResult_t koloIallToAll(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                    koloComm_t comm, koloRequest_t* request);
/* Starts koloGather. */
KOLO_API koloResult_t koloIgather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                  int root, koloComm_t comm, koloRequest_t* request);
/* Starts koloScatter. */
KOLO_API koloResult_t koloIscatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                   int root, koloComm_t comm, koloRequest_t* request);
/* Starts koloBarrier. */
KOLO_API koloResult_t koloIbarrier(koloComm_t comm, koloRequest_t* request);
/* Starts koloAllGatherv. */
KOLO_API koloResult_t koloIallGatherv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                      koloDataType_t datatype, koloComm_t comm, koloRequest_t* request);
/* Starts koloReduceScatterv. */
KOLO_API koloResult_t koloIreduceScatterv(const void* sendbuf, void* recvbuf, const size_t* counts,
                                          const size_t* displs, koloDataType_t datatype, koloRedOp_t op,
                                          koloComm_t comm, koloRequest_t* request);
/* Starts koloAllToAllv. */
KOLO_API koloResult_t koloIallToAllv(const void* sendbuf, const size_t* sendcounts, const size_t* senddispls,
                                     void* recvbuf, const size_t* recvcounts, const size_t* recvdispls,
                                     koloDataType_t datatype, koloComm_t comm, koloRequest_t* request);
/* Starts koloGatherv. */
KOLO_API koloResult_t koloIgatherv(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                                   const size_t* displs, koloDataType_t datatype, int root, koloComm_t comm,
                                   koloRequest_t* request);
/* Starts koloScatterv. */
KOLO_API koloResult_t koloIscatterv(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                                    size_t recvcount, koloDataType_t datatype, int root, koloComm_t comm,
                                    koloRequest_t* request);
/* Closes the outermost group like koloGroupEnd, without waiting: one request stands for all that the group holds.
 * The group's operations, on whatever communicators, are those called with a NULL stream. The request has the deadline
 * (koloSetTimeout) that is in force where the group ends.
 * Parameters: request: place for the handle.
 * Errors: koloInvalidUsage without an open group, for an inner group, for an operation on a stream, and for a group
 *   that makes communicators. On an error nothing has begun; with koloOutOfMemory the group is closed all the same. */
KOLO_API koloResult_t koloIgroupEnd(koloRequest_t* request);

/* Tells the result of a request's operation, or koloInProgress while it is not done.
 * The call does not wait. It makes progress as far as that needs no waiting.
 * Errors: the operation's. */
KOLO_API koloResult_t koloRequestTest(koloRequest_t request);
/* Waits for a request and returns the operation's result.
 * Parameters: timeoutMs: milliseconds, or -1 for no limit.
 * After timeoutMs the call returns koloInProgress, and the operation goes on. A wait with a limit that lasts may notice
 * the end 4 milliseconds late.
 * Errors: the operation's. koloInvalidArgument (timeoutMs). koloInvalidUsage inside a reduction, progress or allocate
 *   function. */
KOLO_API koloResult_t koloRequestWait(koloRequest_t request, int timeoutMs);
/* Waits until one of several requests is done.
 * Parameters:
 *   count      entries of requests
 *   requests   handles; NULL entries are skipped
 *   timeoutMs  milliseconds, or -1 for no limit
 *   index      place for the index of the request that is done; -1 if all entries are NULL
 * After timeoutMs the call returns koloInProgress. A wait that lasts may notice the end 4 milliseconds late.
 * Errors: koloInvalidCount, koloInvalidArgument (timeoutMs). koloInvalidUsage inside a reduction, progress or allocate
 *   function. The result of the operation is not returned here: a request that is done gives koloSuccess. */
KOLO_API koloResult_t koloRequestWaitAny(int count, const koloRequest_t* requests, int timeoutMs, int* index);
/* Waits until all of several requests are done.
 * Parameters:
 *   count      entries of requests
 *   requests   handles; NULL entries are skipped
 *   timeoutMs  milliseconds for all together, or -1 for no limit
 * After timeoutMs the call returns koloInProgress, and the operations go on.
 * Errors: that of the first operation, in the order of the entries, that has failed; all others are done then, too.
 *   koloInvalidCount, koloInvalidArgument (timeoutMs). koloInvalidUsage inside a reduction, progress or allocate
 *   function. */
KOLO_API koloResult_t koloRequestWaitAll(int count, const koloRequest_t* requests, int timeoutMs);
/* A notify function: called once, when a request's operation is done.
 * The caller of the function is a thread of the library that does nothing else, or koloRequestNotify itself if the
 * operation is done already. The function may run after koloRequestWait has returned. It should return soon, because
 * other functions wait for their turn.
 * It may start requests and free this one. It may not end a communicator (koloInvalidUsage).
 * Parameters:
 *   result   the operation's
 *   message  what went wrong, or ""; the library's, valid during the call
 *   context  as given to koloRequestNotify */
typedef void (*koloNotifyFunction_t)(koloResult_t result, const char* message, void* context);
/* Sets the function that is called when a request's operation is done.
 * Parameters: function: not NULL; context: passed to the function, and must live until it was called.
 * Errors: koloInvalidUsage if the request has such a function already. koloSystemError if the system gives no thread to
 *   call the function, koloOutOfMemory if there is no memory for the call; then it is not called. */
KOLO_API koloResult_t koloRequestNotify(koloRequest_t request, koloNotifyFunction_t function, void* context);
/* Gives a request back.
 * An operation that is not done goes on, and needs its buffers until it is done.
 * Parameters: request: the handle is dead afterwards. */
KOLO_API koloResult_t koloRequestFree(koloRequest_t request);

/* ------------------------------------------------------- lists and axes */
/* Collectives over many tensors at once, and along the axes of arrays. A list is one operation: one header, one launch,
 * and no copy into or out of a common buffer. The data goes from the items' own memory into the transfer, and out of it
 * into the items' own memory.
 *
 * Items
 *  - An item is one tensor of each rank. All ranks give the same number of items, in the same order.
 *  - What a collective says of sendbuf, recvbuf and count holds for each item: an item of koloAllGatherList has count
 *    elements in sendbuf, and n times as many in recvbuf.
 *  - counts, if not NULL, holds one length for each rank, instead of count. 0 is legal. Collectives that divide a
 *    buffer take it: all-gather, reduce-scatter, gather, scatter, all-to-all. In an all-to-all rank r gets a block of
 *    counts[r] elements from each rank, and all ranks give the same counts.
 *  - A NULL buffer is legal where the rank has none by the rules of the collective, and where it has no elements.
 *
 * Datatypes
 *  - The items of a list may have different datatypes. With a pre-multiplied sum, the transfertype of all is that of
 *    its handle.
 *  - KOLO_SAME_DATATYPE as transfertype or recvtype stands for the item's sendtype.
 *  - Elements are converted from sendtype to transfertype on the way out, and from transfertype to recvtype on the way
 *    in. Reductions fold in transfertype. Conversions are among koloFloat32, koloFloat16, koloBfloat16 and both float8,
 *    and between koloFloat32 and koloFloat64. They round to nearest, ties to even.
 *  - scale, if not NULL, points to a number that elements are multiplied by when they are converted on the way out. On
 *    the way in, they are multiplied by 1 / scale, rounded to float32. float8 needs it where values leave the range of
 *    the type. The scale of an item is the same on all ranks.
 *  - A narrow transfertype rounds each partial result of a reduction. With KOLO_DEBUG=debug in the environment, a line
 *    for each collective tells the algorithm.
 *
 * Arrays
 *  - sendarray and recvarray, if not NULL, describe the buffers as arrays, and count is not read. Elements are
 *    transferred in row-major order of the array's indices, whatever the strides are.
 *  - A buffer that holds the blocks of all ranks is cut along `axis`: block r has the indices of rank r's part. The
 *    ranks divide the axis evenly, or counts holds the length of each rank's part. Along the axis, what a rank gets of
 *    an all-to-all has that rank's length n times.
 *  - The other buffer has the shape of one block. One of the two arrays may be NULL; that buffer is row-major then.
 *  - Strides may be negative. In sendarray they may be 0. In recvarray no two elements may lie at one place:
 *    each stride is larger than what the dimensions with smaller strides span.
 *
 * Results
 *  - The results are those of single calls, bit for bit, in three cases: where data is only moved, for integers, and on
 *    a reproducible communicator.
 *  - Reductions of floats also give the results of single calls, bit for bit, if the same algorithm is forced for both.
 *    Where it is forced for registered buffers alone ("/registered=yes"), this holds on the host, if the ranks can read
 *    each other's memory. Elsewhere lists take the algorithm for ordinary buffers.
 *    Some algorithms are exceptions, because they cut a list at other places: biring (all-reduce, reduce-scatter),
 *    double_tree (reduce), hierarchical and mesh_ring (all-reduce), and on GPUs ring with several channels
 *    (all-reduce).
 *  - Another algorithm takes the place of those that serve no lists: line; recursive and hierarchical for a
 *    reduce-scatter. If the recvtype of an item is not its transfertype, another one also takes the place of recursive,
 *    tree, double_tree, hierarchical and mesh_ring, of two_shot for a broadcast, and of bruck for an all-gather.
 *
 * Communicators
 *  - On GPUs, each item lies in memory of the rank's device (koloInvalidPointer names the item). The list is a launch
 *    of its own, or a part of its group's, and never goes to a resident kernel. What describes the list lies in the
 *    device's memory. It is uploaded once, as long as the list is repeated. With a reduction that the caller has made
 *    (a pre-multiplied sum), it is uploaded in each call.
 *  - On host communicators, ranks of one machine use items where they are if all items of a rank lie in windows, or are
 *    long. src/comm/README.md says when, and what goes through staging memory instead.
 *
 * Memory: the items, and the arrays that they point to, are read before the call returns. The buffers are the caller's
 *   again when the operation has ended.
 * In place: each item by itself, as its collective says.
 *   - Such an item has the same sendtype and recvtype, and the same strides. In an all-to-all, it also has the same
 *     axes and lengths.
 *   - Any other overlap of buffers without strides, also between items, is refused.
 *   - An array with strides is refused if it begins at the address of the item's other buffer. Other overlaps of such
 *     arrays are not noticed.
 * Errors: those of the collective, which name the item. koloInvalidArgument (shape, axis, counts, overlap).
 *   koloInvalidCount (lengths, strides). koloInvalidDatatype for a conversion that does not exist. koloMismatch if the
 *   lists of two ranks differ in the number of items, lengths, axis, transfertype, recvtype or scale. The message names
 *   the first item that differs, and what two ranks gave there. */

/* Most dimensions of an array. */
#define KOLO_MAX_DIMS 8

/* The shape of an array in memory.
 *  - shape: ndim lengths, the slowest dimension first. 0 is legal.
 *  - strides: ndim distances in elements, between neighbours along a dimension. NULL: row-major, without gaps.
 * Both arrays are the caller's, and are read before a call returns. They may be NULL where ndim is 0: a scalar, which
 * has one element. */
typedef struct {
  int ndim;
  const size_t* shape;
  const ptrdiff_t* strides;
} koloArray_t;

/* In an item: the datatype that the item's sendtype is. */
#define KOLO_SAME_DATATYPE ((koloDataType_t)(-1))

/* An item of a list; see above. Start from KOLO_ITEM_INITIALIZER: of an item without casts, sendtype is then the only
 * datatype to set. Members that are 0 or NULL are absent, but for the three datatypes. */
typedef struct {
  const void* sendbuf;
  void* recvbuf;
  size_t count;         /* elements */
  const size_t* counts; /* [n] elements, or lengths along the axis, of each rank; or NULL */
  koloDataType_t sendtype;
  koloDataType_t transfertype;
  koloDataType_t recvtype;
  const koloArray_t* sendarray;
  const koloArray_t* recvarray;
  int axis;
  const float* scale;
} koloItem_t;

#define KOLO_ITEM_INITIALIZER \
  { 0, 0, 0, 0, KOLO_SAME_DATATYPE, KOLO_SAME_DATATYPE, KOLO_SAME_DATATYPE, 0, 0, 0, 0 }

/* All-reduces each item.
 * Parameters: items: count items.
 * Adjoint: koloAllReduceList. */
KOLO_API koloResult_t koloAllReduceList(const koloItem_t* items, size_t count, koloRedOp_t op, koloComm_t comm,
                                        koloStream_t stream);
/* Reduces each item to the root.
 * Parameters: items: count items.
 * Adjoint: koloBroadcastList. */
KOLO_API koloResult_t koloReduceList(const koloItem_t* items, size_t count, koloRedOp_t op, int root, koloComm_t comm,
                                     koloStream_t stream);
/* Broadcasts each item from the root.
 * Parameters: items: count items.
 * Adjoint: koloReduceList. */
KOLO_API koloResult_t koloBroadcastList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                        koloStream_t stream);
/* All-gathers each item.
 * Parameters: items: count items; recvbuf is the divided buffer.
 * Adjoint: koloReduceScatterList. */
KOLO_API koloResult_t koloAllGatherList(const koloItem_t* items, size_t count, koloComm_t comm, koloStream_t stream);
/* Reduce-scatters each item.
 * Parameters: items: count items; sendbuf is the divided buffer.
 * Adjoint: koloAllGatherList. */
KOLO_API koloResult_t koloReduceScatterList(const koloItem_t* items, size_t count, koloRedOp_t op, koloComm_t comm,
                                            koloStream_t stream);
/* Gathers each item to the root.
 * Parameters: items: count items; recvbuf is the divided buffer.
 * Adjoint: koloScatterList. */
KOLO_API koloResult_t koloGatherList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                     koloStream_t stream);
/* Scatters each item from the root.
 * Parameters: items: count items; sendbuf is the divided buffer.
 * Adjoint: koloGatherList. */
KOLO_API koloResult_t koloScatterList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                      koloStream_t stream);
/* Exchanges each item all to all.
 * Parameters: items: count items; both buffers are divided, along the same axis.
 * Adjoint: koloAllToAllList. Of items with counts that are not all equal, there is none. */
KOLO_API koloResult_t koloAllToAllList(const koloItem_t* items, size_t count, koloComm_t comm, koloStream_t stream);
/* Exchanges one array all to all along two axes.
 * Rank r gets the r-th part, along splitAxis, of every rank's array. What a rank gets is put together along concatAxis,
 * in the order of the ranks. So an array that is distributed along concatAxis is distributed along splitAxis
 * afterwards.
 * Parameters:
 *   item     sendarray is not NULL; recvarray, if not NULL, has the shape of the result. count, counts and axis are not
 *            read.
 *   splits   [n] the ranks' lengths along splitAxis; NULL: the same for all
 *   concats  [n] the lengths along concatAxis that the ranks' arrays have; NULL: the same for all
 *   If both axes are the same one, a rank gets the length splits[rank] from each rank. concats is then NULL, or has
 *   that length in all n entries.
 * Adjoint: koloAllToAllAxis, with splitAxis and concatAxis, and splits and concats, exchanged. If both axes are the
 *   same one and the lengths in splits are not all equal, there is none. */
KOLO_API koloResult_t koloAllToAllAxis(const koloItem_t* item, int splitAxis, int concatAxis, const size_t* splits,
                                       const size_t* concats, koloComm_t comm, koloStream_t stream);

/* Where an array is: an axis, along which the ranks have parts of it, in the order of the ranks; or one of these. */
#define KOLO_ON_ALL (-1)                 /* every rank has the whole array */
#define KOLO_ON_RANK(rank) (-2 - (rank)) /* one rank has the whole array, the others have nothing */
/* Reshards: an array that is distributed in one way is distributed in another one afterwards.
 *  - From an axis: to another axis, or to other parts along the same one, an all-to-all; to all ranks an all-gather; to
 *    one rank a gather.
 *  - From one rank: to an axis a scatter; to all ranks a broadcast; to another rank a gather.
 *  - From KOLO_ON_ALL, and where nothing is to move: each rank copies by itself. Such a call does not notice what the
 *    others call.
 * Parameters:
 *   item       sendbuf: what this rank has of the array; recvbuf: what it is to have. NULL where that is nothing.
 *              sendarray, recvarray: for strides; NULL: row-major. Their shape is that of the rank's part.
 *              count, counts and axis are not read.
 *   whole      the shape of the whole array, the same on all ranks; strides are not read
 *   from, to   an axis, KOLO_ON_ALL or KOLO_ON_RANK()
 *   fromParts  if from is an axis: [n] the lengths of the ranks' parts, 0 allowed; NULL: the ranks divide the axis
 *              evenly
 *   toParts    if to is an axis: as fromParts
 * In place: no. The exception is a copy of an array onto itself.
 * Errors: those of lists. koloInvalidArgument for an axis that the ranks do not divide; the message names axis, length
 *   and ranks. koloInvalidRank (KOLO_ON_RANK).
 * Adjoint:
 *   - If neither is KOLO_ON_ALL: koloReshard, with from and to, and fromParts and toParts, exchanged.
 *   - To KOLO_ON_ALL: a reduction to where the array was.
 *   - From KOLO_ON_ALL, where the copies stand for one array: to an axis or to a rank, koloReshard with from and to,
 *     and fromParts and toParts, exchanged; to KOLO_ON_ALL, koloAllReduce. */
KOLO_API koloResult_t koloReshard(const koloItem_t* item, const koloArray_t* whole, int from, int to,
                                  const size_t* fromParts, const size_t* toParts, koloComm_t comm, koloStream_t stream);

/* ----------------------------------------------------------------- memory */

/* Allocates page-aligned host memory to which every process on this machine can be given access.
 * Parameters: ptr: place for the address; the caller frees the memory by koloMemFree. bytes: any number; 0 makes *ptr
 *   NULL.
 * Errors: koloInvalidCount, koloOutOfMemory. */
KOLO_API koloResult_t koloMemAlloc(void** ptr, size_t bytes);
/* Allocates memory of a CUDA device, for communicators on GPUs.
 * The memory is not zeroed.
 * Parameters:
 *   ptr     place for the address; the caller frees it by koloMemFree
 *   bytes   rounded up to what the device gives out (2 MiB)
 *   device  a CUDA device, or KOLO_HOST: as koloMemAlloc
 * Errors: koloInvalidCount, koloInvalidArgument (device), koloOutOfMemory. koloUnsupported in a build without CUDA. */
KOLO_API koloResult_t koloMemAllocOn(void** ptr, size_t bytes, int device);
/* Frees memory of koloMemAlloc or koloMemAllocOn.
 * Parameters: ptr: NULL is allowed. Before, this rank deregisters windows over the memory, or abandons them.
 * For memory of a device, the call waits until the kernels that may use it have ended, as cudaFree does.
 * Errors: koloInvalidPointer for memory of another origin. koloInvalidUsage while windows lie over it. */
KOLO_API koloResult_t koloMemFree(void* ptr);
/* Registers memory as a window, which the peers read and write directly (zero-copy). Collective over comm.
 *  - Each rank gives memory of its own. Sizes may differ, and 0 and NULL are allowed.
 *  - Operations whose buffers lie in windows, at any offsets, are zero-copy between ranks that map each other's memory.
 *    An all-to-all in place is the exception. Between hosts, messages of more than 16 KiB are zero-copy.
 *  - Host memory of koloMemAlloc is zero-copy between processes. Other host memory registers too, and is zero-copy only
 *    between ranks of one process.
 *  - On a GPU, memory of koloMemAllocOn and cudaMalloc is zero-copy between processes. Memory of pools
 *    (cudaMallocAsync) is staged.
 *  - koloWindowIsZeroCopy tells. Where ranks share cores, short blocks may be staged all the same, because that is
 *    faster there (koloCommGetPlan).
 *  - Registering memory twice is harmless.
 * Parameters:
 *   buffer  the caller's memory; must not be freed before its windows are deregistered
 *   bytes   its length
 *   window  place for the handle
 * The call waits until all ranks have called it. Each wait for them ends after KOLO_INIT_TIMEOUT_MS.
 * Errors: koloInvalidCount. koloInvalidUsage inside a group, and when all windows of the communicator are in use. The
 *   failure of comm. */
KOLO_API koloResult_t koloWindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window);

/* Starts koloWindowRegister as a request ("requests"). Host communicators only.
 * If bytes are 0 on all ranks, no window is made, and *window is NULL. Such a call costs as much as a short all-reduce.
 * Parameters: as koloWindowRegister; window: written when the request is done; request: place for the handle.
 * Errors: koloUnsupported on GPU communicators. The errors of koloWindowRegister are the request's. */
KOLO_API koloResult_t koloIwindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window,
                                          koloRequest_t* request);
/* Registers host memory that this process has mapped for all ranks itself. Collective over comm.
 * An example is the memory of MPI_Win_allocate_shared. The memory is staged, and the window is not zero-copy, if
 *  - ranks state different lengths of one rank's memory,
 *  - a rank does not see another one's memory (NULL), or
 *  - a rank is not reached by shared memory.
 * Parameters:
 *   parts   an entry for each rank: where this process sees that rank's memory
 *   bytes   an entry for each rank: the length of the memory, as that rank itself states it
 *   window  place for the handle
 *   The arrays are read before the call returns. The memory must stay mapped until the window is deregistered, or all
 *   ranks have called koloWindowAbandon.
 * The call waits as koloWindowRegister does.
 * Errors: as koloWindowRegister. koloUnsupported on GPUs. */
KOLO_API koloResult_t koloWindowRegisterMapped(koloComm_t comm, void* const* parts, const size_t* bytes,
                                               koloWindow_t* window);
/* Deregisters a window. Collective over the window's communicator.
 * Parameters: comm: the window's communicator; window: the handle is dead afterwards, unless the call changed nothing.
 * The call waits as koloWindowRegister does, and not at all on a communicator that has failed.
 * Errors:
 *   - Nothing is changed: koloInvalidUsage inside a group, koloInvalidHandle, koloMismatch if ranks give different
 *     windows on a communicator that has not failed.
 *   - The window is gone, and its memory may be freed: the failure of the communicator, for example because other ranks
 *     do not answer. */
KOLO_API koloResult_t koloWindowDeregister(koloComm_t comm, koloWindow_t window);
/* Gives up a window of koloWindowRegisterMapped on this rank alone, in the place of koloWindowDeregister.
 *  - Afterwards this rank may free its own memory of the window. No operation of this rank that has begun may have a
 *    buffer there.
 *  - Each other rank may use its own memory of the window in operations until it calls koloWindowAbandon too. So that
 *    memory must stay mapped here until then.
 *  - Either all ranks abandon a window, or all deregister it. An abandoned window counts as one of the communicator's
 *    windows until the ranks register another one after all have abandoned it.
 * Parameters: comm: the window's communicator; window: the handle is dead afterwards.
 * The call does not even wait for an operation on comm that another thread has called.
 * Errors: koloInvalidHandle. koloInvalidUsage if the window is not one of koloWindowRegisterMapped. */
KOLO_API koloResult_t koloWindowAbandon(koloComm_t comm, koloWindow_t window);
/* Tells whether a window is zero-copy.
 * Parameters: zeroCopy: place for 1 or 0. */
KOLO_API koloResult_t koloWindowIsZeroCopy(koloWindow_t window, int* zeroCopy);

/* ------------------------------------------------------ reduction handles */

typedef enum KOLO_OF_INT { koloScalarHostImmediate = 1 } koloScalarResidence_t;

/* Makes a reduction: the sum over ranks of scalar * sendbuf.
 * Parameters:
 *   op         place for the handle, which is valid on comm
 *   scalar     one element of datatype in host memory, read by this call; each rank may give its own
 *   datatype   the only datatype with which the handle can be used
 *   residence  koloScalarHostImmediate
 * Errors: koloInvalidDatatype, koloInvalidOperation (not defined for datatype), koloInvalidArgument (residence). */
KOLO_API koloResult_t koloRedOpCreatePreMulSum(koloRedOp_t* op, const void* scalar, koloDataType_t datatype,
                                               koloScalarResidence_t residence, koloComm_t comm);
/* A reduction function: acc[i] = acc[i] (op) in[i] for count elements.
 * It must be associative. It runs on the thread that executes the operation. It may not call operations, groups or the
 * end of a communicator (koloInvalidUsage), because they would wait for the operation that the function is part of.
 * Parameters: acc: written; in: read; they do not overlap and are aligned to the element's size; context: as given. */
typedef void (*koloRedFunction_t)(void* acc, const void* in, size_t count, koloDataType_t datatype, void* context);
/* Makes a reduction of a function of the caller. It works with every datatype, on host communicators.
 * Parameters:
 *   op           place for the handle, which is valid on comm
 *   function     not NULL
 *   commutative  0: elements are folded strictly in rank order; the same on all ranks
 *   context      passed to the function; must live as long as the handle is in use */
KOLO_API koloResult_t koloRedOpCreate(koloRedOp_t* op, koloRedFunction_t function, int commutative, void* context,
                                      koloComm_t comm);
/* Destroys a reduction handle of comm.
 * Errors: koloInvalidOperation if op was not made on comm, or was destroyed. */
KOLO_API koloResult_t koloRedOpDestroy(koloRedOp_t op, koloComm_t comm);

/* ---------------------------------------------------------------- streams */
/* Streams and events of this section are for host communicators. On GPUs, streams and events are CUDA's. */

/* Makes a stream, whose operations run one after the other on a background thread.
 * Parameters: stream: place for the handle; the caller destroys it.
 * Errors: koloSystemError if the system gives no thread. koloOutOfMemory if there is no memory for another. */
KOLO_API koloResult_t koloStreamCreate(koloStream_t* stream);
/* Waits until all that was enqueued on a stream before is done. With the NULL stream it does not wait.
 * Errors: the first error since the last call. koloInvalidUsage inside a reduction, progress or allocate function. */
KOLO_API koloResult_t koloStreamSynchronize(koloStream_t stream);
/* Tells whether a stream has work left: koloInProgress while it has, else koloSuccess or the first error.
 * Errors: the first error since the last koloStreamSynchronize. */
KOLO_API koloResult_t koloStreamQuery(koloStream_t stream);
/* Waits as koloStreamSynchronize does, then frees the stream.
 * Parameters: stream: the handle is dead afterwards; not NULL.
 * Errors: the first error since the last koloStreamSynchronize. koloInvalidUsage inside a group. */
KOLO_API koloResult_t koloStreamDestroy(koloStream_t stream);

/* Makes an event: a place in a stream, namely the end of all that was enqueued there before koloEventRecord.
 * An event that was never recorded has been reached.
 * Parameters: event: place for the handle; the caller destroys it.
 * Errors: koloOutOfMemory if there is no memory for another. */
KOLO_API koloResult_t koloEventCreate(koloEvent_t* event);
/* Puts an event at the present end of a stream.
 * Recording an event again moves it; waits that have begun still wait for the earlier place.
 * Parameters: stream: NULL means that the event has been reached. */
KOLO_API koloResult_t koloEventRecord(koloEvent_t event, koloStream_t stream);
/* Tells whether the stream has reached an event: koloSuccess if it has, else koloInProgress.
 * Errors: errors of operations are reported by the stream, not by the event. */
KOLO_API koloResult_t koloEventQuery(koloEvent_t event);
/* Waits until the stream has reached an event.
 * Errors: as koloEventQuery; koloInvalidUsage inside a reduction, progress or allocate function. */
KOLO_API koloResult_t koloEventSynchronize(koloEvent_t event);
/* Makes a stream wait for an event: what is enqueued on the stream from now on begins when the event has been reached.
 * With a NULL stream the call waits as koloEventSynchronize does. */
KOLO_API koloResult_t koloStreamWaitEvent(koloStream_t stream, koloEvent_t event);
/* Destroys an event.
 * Parameters: event: the handle is dead afterwards. Streams that wait for the event still do. */
KOLO_API koloResult_t koloEventDestroy(koloEvent_t event);

/* ----------------------------------------------------------------- arrays */
/* Arrays whose shape and datatype travel with the data: the receiver need not know them. What holds for every function
 * of this section:
 *
 * Arrays: koloArray_t, of 0 to KOLO_MAX_DIMS dimensions. Strides are NULL, or row-major without gaps. A scalar has 0
 *   dimensions and one element. Plain bytes of any length, such as serialised objects, are an array of koloUint8 with
 *   one dimension.
 * Receiving: the library calls the receiver's allocate function when the shape has arrived, and then writes the data to
 *   the memory that the function gives.
 * Communicators: on host memory and on GPUs. On GPUs, data and the memory that allocate gives are memory of the rank's
 *   device.
 * Groups: the calls are refused inside a group (koloInvalidUsage), since the receiver's part has two steps.
 * Waiting: the stream says when a call returns (rule 7), also after koloSetMayWait(0).
 *   - With a stream of koloStreamCreate, allocate runs on the thread of the stream. Collectives that other threads call
 *     on the communicator wait until the call is done. What comes later in the stream waits too. So of two ranks that
 *     exchange arrays in one stream, one must send first, and the other must receive first.
 *   - On GPUs, allocate runs on the calling thread, and the data then moves in the stream.
 *   - On GPUs, a broadcast or a scatter blocks until all ranks have called it and have their memory. The control plane
 *     tells them.
 *   - On GPUs, koloRecvArray blocks until the sender has called koloSendArray. The sender's communicator must exist
 *     until the array has been received.
 *   - On GPUs, calls of other threads on the communicator wait until such a call has returned.
 * Errors: koloInvalidPointer, koloInvalidArgument (array: number of dimensions, strides), koloInvalidCount (elements),
 *   koloInvalidDatatype, koloInvalidRoot (root, peer). koloInvalidUsage after koloCommFinalize. koloOutOfMemory if
 *   allocate returns NULL. The failure of comm (rule 10). */

/* An allocate function: returns memory for an array, row-major without gaps; NULL if it has none.
 * The memory is the caller's, also if the call fails later. For an array without elements NULL is no error.
 * The function may not call operations, groups or the end of a communicator (rule 11). It must return soon: other ranks
 * wait for it.
 * Parameters: context: as given to the call; shape: ndim lengths, valid during the call. */
typedef void* (*koloAllocateFunction_t)(void* context, koloDataType_t datatype, int ndim, const size_t* shape);

/* Sends an array to one rank, which receives it by koloRecvArray and by no other function.
 * Arrays between two ranks arrive in the order sent. On host communicators they and other messages do not match each
 * other. On GPUs the data goes as one of the messages between the two ranks, so both ranks must call arrays and other
 * messages in one order.
 * Parameters: data: the array's elements, read; array, datatype: what data is; peer: 0..n-1, on GPUs not this rank.
 * A send may return before the receiver has called.
 * Adjoint: koloRecvArray from the peer. */
KOLO_API koloResult_t koloSendArray(const void* data, const koloArray_t* array, koloDataType_t datatype, int peer,
                                    koloComm_t comm, koloStream_t stream);
/* Receives an array.
 * Parameters:
 *   allocate  gives the memory; not NULL; called once
 *   context   passed to allocate
 *   peer      0..n-1, or KOLO_ANY_SOURCE; on GPUs a rank, and not this one
 *   status    NULL, or a place for the source, the tag 0 and the number of elements; must live until the data has come
 * Errors: koloOutOfMemory if allocate returns NULL: the array is dropped, and the sender's call succeeds.
 * Adjoint: koloSendArray to the source. */
KOLO_API koloResult_t koloRecvArray(koloAllocateFunction_t allocate, void* context, int peer, koloRecvStatus_t* status,
                                    koloComm_t comm, koloStream_t stream);
/* Broadcasts an array of the root. Collective over comm.
 * Parameters:
 *   data, array, datatype  the array, read on the root only
 *   allocate               gives the memory; may be NULL on the root, whose data then is its result
 *   context                passed to allocate
 *   root                   the same on all ranks
 * Errors: an array that the root may not send is an error on all ranks. If allocate returns NULL on a rank, that rank
 *   returns koloOutOfMemory and all others koloRemoteError. No data moves then, and comm goes on.
 * Adjoint: koloReduce, once all know the shape. */
KOLO_API koloResult_t koloBroadcastArray(const void* data, const koloArray_t* array, koloDataType_t datatype,
                                         koloAllocateFunction_t allocate, void* context, int root, koloComm_t comm,
                                         koloStream_t stream);
/* Scatters an array of the root along an axis: rank i receives the i-th of n equal parts. Collective over comm.
 * Parameters: as koloBroadcastArray. axis: which dimension is divided, read on the root only. If allocate is NULL on
 *   the root, the root's part is where it lies in data, with the strides of data.
 * Errors: as koloBroadcastArray. koloInvalidArgument on all ranks if n does not divide the length of the axis, or if
 *   the array has no such axis; the message names axis, length and ranks, or the shape.
 * Adjoint: koloGatherList along the axis, once all know the shape. */
KOLO_API koloResult_t koloScatterArray(const void* data, const koloArray_t* array, koloDataType_t datatype, int axis,
                                       koloAllocateFunction_t allocate, void* context, int root, koloComm_t comm,
                                       koloStream_t stream);

/* ---------------------------------------------------------------- buckets */
/* A plan says which collectives of a program are merged into one launch, and in which order the program is carried out
 * then. Planning exchanges nothing. An example:
 *
 *   koloBucketPlan(program, count, NULL, NULL, NULL, 1, bucketOf, order, stepAt, &steps);
 *   for (s = 0; s < steps; ++s) {
 *     const size_t *members = order + stepAt[s], n = stepAt[s + 1] - stepAt[s];
 *     if (program[*members].item != NULL) koloBucketLaunch(program, members, n, NULL);
 *     else ...  what else the program does at this place
 *   } */

/* The bucket of an item that is not merged. */
#define KOLO_NO_BUCKET (-1)

/* One collective of a program.
 * Only all-gathers, reduce-scatters and all-reduces are merged. Items of other collectives may stand for any other
 * work: dependencies lead through them. */
typedef struct {
  /* Transferred: of an all-gather's output, or a reduce-scatter's input, all n blocks; of an all-reduce one. */
  size_t bytes;
  koloDataType_t datatype; /* in which elements are transferred */
  koloCollective_t collective;
  koloRedOp_t op;          /* read for reduce-scatter and all-reduce only */
  koloComm_t comm;         /* compared only; any value, NULL included; if item is given, the communicator */
  const size_t* dependsOn; /* indices of earlier items whose results this item needs; NULL if there are none */
  size_t dependencies;     /* entries of dependsOn */
  /* What an all-gather, reduce-scatter or all-reduce transfers, as its call over a list takes it. bytes and datatype
   * are then not read: the item says them. NULL: they are read, and koloBucketLaunch does not take this item. */
  const koloItem_t* item;
} koloBucketItem_t;

/* A cap function: returns the most bytes of a bucket, in MiB.
 * Parameters:
 *   first    the item that opens the bucket, with its bytes and datatype; so caps may differ for each collective,
 *            communicator and datatype; valid during the call
 *   bucket   the number of the bucket in its class, from 0 on
 *   context  as given to koloBucketPlan */
typedef double (*koloBucketCapFunction_t)(const koloBucketItem_t* first, int bucket, void* context);
/* A filter function: returns 1 if an item may be merged, else 0.
 * Parameters: item: its index; context: as given to koloBucketPlan. */
typedef int (*koloBucketFilterFunction_t)(size_t item, void* context);

/* Plans buckets: which collectives of a program are merged, and in which order the program is then carried out.
 *  - A class is the items of one communicator, collective, datatype and (where there is one) reduction. A bucket holds
 *    items of one class. With mixDatatypes 1 the datatype does not count.
 *  - The items of a class are put into its open bucket one after the other, in the program's order. An item that does
 *    not fit under the cap closes the bucket and opens the next one, whose cap is asked for then. An item above the cap
 *    has a bucket of its own. With KOLO_DEBUG=info a line tells of each bucket that is full.
 *  - An item that depends on a member of the open bucket, directly or through other items, is skipped: it is not
 *    merged, neither into this bucket nor into a later one. So is an item on which a member depends, through a bucket
 *    that was planned before. A new bucket begins without members to depend on.
 *  - Classes are planned one after the other, by their first items. What depends on a member of a closed bucket depends
 *    on all that the bucket needs. So the merged program has no cycle.
 *  - A bucket of one item is not merged.
 *  - The order is the program's, but for two rules. An all-gather bucket stands at the place of its first member, and
 *    what it needs is moved in front of it. Any other bucket stands at the place of its last member, and what needs its
 *    results is moved behind it. What an all-gather bucket needs goes first where the two rules disagree.
 *  - The plan depends on the arguments alone. Ranks with the same program have the same order.
 * Parameters:
 *   items         count items, in the program's order
 *   cap           NULL: 2000 MiB for every bucket
 *   filter        NULL: every item may be merged
 *   context       passed to cap and filter
 *   mixDatatypes  1 or 0
 *   bucketOf      count entries: the bucket of each item, or KOLO_NO_BUCKET. Buckets are numbered from 0 on, by their
 *                 first members. NULL is allowed.
 *   order         count entries: all items, each behind what it depends on. The members of a bucket stand together, in
 *                 the program's order.
 *   stepAt        count + 1 entries, of which the first *stepCount + 1 are written: where in order each step begins,
 *                 and where the last one ends. A step is a bucket, or an item that is not merged.
 *   stepCount     place for the number of steps
 *   order, stepAt and stepCount may all be NULL.
 * The time is proportional to C * (items + dependencies) + items * log(items), where C is the number of classes with
 * two or more items that may be merged. It is longer where buckets of one class turn the order of another class's
 * items round, by a factor that is at most the number of these items.
 * Errors: koloInvalidArgument for an unknown collective, for mixDatatypes, for a cap that is negative or no number, and
 *   for an index in dependsOn that is not of an earlier item, which excludes cycles. koloInvalidDatatype,
 *   koloInvalidOperation. Of an item with a koloItem_t: koloInvalidHandle, and the errors of lists. The message names
 *   the item.
 * The method is that of PyTorch Inductor, fx_passes/bucketing.py. Its buckets do not mix datatypes, and its all-gathers
 * ask for one cap. An item that depends on a member of any earlier bucket of its class is skipped there. */
KOLO_API koloResult_t koloBucketPlan(const koloBucketItem_t* items, size_t count, koloBucketCapFunction_t cap,
                                     koloBucketFilterFunction_t filter, void* context, int mixDatatypes, int* bucketOf,
                                     size_t* order, size_t* stepAt, size_t* stepCount);
/* Carries out a step of a plan: a bucket as one call over a list, or one item as a list of one.
 * Parameters:
 *   items    the program, as given to koloBucketPlan
 *   members  array of count indices of items, of one communicator, collective and reduction; each has a koloItem_t
 *   count    1 or more
 * The call is that of koloAllGatherList, koloReduceScatterList or koloAllReduceList, whichever is the members'
 * collective.
 * Errors: those of that call, which count the members from 0 on. koloInvalidArgument for members that cannot be one
 *   list; the message names the item of the program.
 * Adjoint: that of each member. */
KOLO_API koloResult_t koloBucketLaunch(const koloBucketItem_t* items, const size_t* members, size_t count,
                                       koloStream_t stream);

/* ------------------------------------------------- choices and inspection */

/* Overrides the planner's choice of algorithms on comm. All ranks must give the same text.
 * The text is a list of overrides, separated by commas; "" returns to the planner's choice. Of several overrides that
 * force an algorithm for one operation, the last one counts.
 *   "all_reduce:ring"         forces an algorithm
 *   "all_reduce:^ring"        forbids it
 *   "all_reduce:ring@1M-"     forces it from 1 MiB on; the range is LOW-HIGH in bytes, with K, M or G allowed, and
 *                             either end may be left out
 * Conditions follow, each after a "/". An override holds where all its conditions do. A range is LOW-HIGH, with both
 * ends included, or one number. K, M and G are powers of 1024.
 *   "/bytes=64K-1M"           bytes of the count, the same as "@64K-1M"
 *   "/elements=256001-"       the count of the call; of a list its bytes. In forms with counts it is the longest
 *                             count, or 0 if each rank knows only its own. The bytes are those of this count.
 *   "/ranks=3-"               the number of ranks of comm
 *   "/op=sum+avg"             the reductions, as koloRedOpName has them; "pre_mul_sum" and "user" are those of
 *                             koloRedOpCreatePreMulSum and koloRedOpCreate
 *   "/registered=yes"         only where the buffers of all ranks lie in windows; "no": only where they do not
 * Two examples, the rules of tinygrad's ring and of PyTorch's one-shot all-reduce:
 *   "all_reduce:one_shot,all_reduce:ring/ranks=3-/elements=256001-"
 *   "all_reduce:one_shot/bytes=-128K/op=sum/registered=yes"
 * Without "/registered", an override that forces an algorithm holds for both cases. Algorithms that cannot work between
 * windows are not used there, and the operation goes through staging. A line carries short operations before the ranks
 * know of each other's windows, so it is not chosen beside an override for registered buffers.
 * koloAlgorithmName and koloAlgorithmIsDefined tell which algorithms there are. koloExplain tells which of them fit an
 * operation. The planner chooses where the algorithm asked for cannot carry out an operation:
 *  - line carries only short operations.
 *  - Only line, one_shot and two_shot fold all inputs at once. A reproducible communicator, a reduction that does not
 *    commute, and an average of 8- or 16-bit integers need that.
 * Parameters: text: read by the call.
 * The call waits until operations that were called on comm before have ended.
 * Errors: koloInvalidArgument (text); the message tells what was expected. koloInvalidUsage inside a group. */
KOLO_API koloResult_t koloCommSetAlgorithm(koloComm_t comm, const char* text);

/* What the planner would do. */
typedef struct {
  char algorithm[24];
  char transport[24]; /* of the links used; "self" with one rank */
  int channels;
  /* 1: data goes straight between windows. 0: through staging, or by one copy out of the other process's memory where
   * that is faster (KOLO_SINGLE_COPY_BYTES). */
  int zeroCopy;
  size_t chunkBytes;
  double predictedUs; /* microseconds, by the planner's model */
} koloPlan_t;

/* Tells what the planner would choose for an operation.
 * Where ranks share cores, an operation may differ from its plan in two ways: a barrier that follows a broadcast or
 * scatter may use two_shot, and a rank that only sends may stage its data although the others could take it. An
 * algorithm that koloCommSetAlgorithm forces or forbids is respected.
 * Parameters:
 *   collective, count, datatype, op  as the operation is called; op matters for reductions only
 *   registered                       1: all buffers lie in windows; 0: they do not
 *   plan                             place for the result
 * Errors: koloInvalidArgument (collective), koloInvalidDatatype, koloInvalidCount. */
KOLO_API koloResult_t koloCommGetPlan(koloComm_t comm, koloCollective_t collective, size_t count,
                                      koloDataType_t datatype, koloRedOp_t op, int registered, koloPlan_t* plan);
/* Explains the planner's choice as text: every candidate, its predicted time, and why the winner won.
 * Parameters:
 *   comm    the communicator; NULL: as for nranks ranks on this machine
 *   nranks  1 or more; read only if comm is NULL
 *   collective, count, datatype, op, registered  as koloCommGetPlan
 *   text    place for size bytes, of which the terminator is one; a longer text is cut
 *   needed  NULL, or a place for the full length
 * Errors: as koloCommGetPlan. koloInvalidRankCount. */
KOLO_API koloResult_t koloExplain(koloComm_t comm, int nranks, koloCollective_t collective, size_t count,
                                  koloDataType_t datatype, koloRedOp_t op, int registered, char* text, size_t size,
                                  size_t* needed);

/* Explains the planner's choice for a call over a list, as koloExplain does for other calls.
 * Parameters:
 *   comm, nranks, registered, text, size, needed  as koloExplain
 *   collective, items, count, op, root            as the call over the list takes them; op and root are read where the
 *                                                 collective has them
 * Errors: those of the call over the list. koloInvalidArgument for a collective that takes no list.
 *   koloInvalidRankCount. */
KOLO_API koloResult_t koloExplainList(koloComm_t comm, int nranks, koloCollective_t collective, const koloItem_t* items,
                                      size_t count, koloRedOp_t op, int root, int registered, char* text, size_t size,
                                      size_t* needed);

/* Reads a device string, for koloConfig_t.device and for a choice among the program's streams.
 * Operations take streams, not numbers: on GPUs a stream is CUDA's and the program's own. So the number is an index
 * into whatever streams the program has.
 * Parameters:
 *   text    KIND, KIND and a number, or these with ":" and a stream's number: "gpu0:1". The kinds:
 *             "gpu", "cuda"  a CUDA device; without a number the first
 *             "cpu"          host memory, whatever the number
 *             "xpu"          a CUDA device if this machine has one, else host memory; "xpux" is the same as "xpu"
 *   device  place for the CUDA device, or for KOLO_HOST. Whether the device exists shows when it is used.
 *   stream  place for the stream's number, 0 if the text has none; NULL: a text with a stream other than 0 is refused
 * Errors: koloInvalidArgument; the message tells what was expected. */
KOLO_API koloResult_t koloDeviceParse(const char* text, int* device, int* stream);

typedef enum KOLO_OF_INT {
  koloInfoBuild = 0,      /* version, compiler, features */
  koloInfoTopology = 1,   /* machine, packages, cores, caches, as the library sees them */
  koloInfoTransports = 2, /* each transport: whether it works here, and if not why */
  koloInfoSettings = 3    /* each setting: value, where it came from, what it means */
} koloInfoTopic_t;

/* Tells about this process, as a JSON text.
 * Parameters: topic; text, size, needed: as koloExplain.
 * Errors: koloInvalidArgument (topic). */
KOLO_API koloResult_t koloGetInfo(koloInfoTopic_t topic, char* text, size_t size, size_t* needed);

#ifdef __cplusplus
}
#endif

#endif
