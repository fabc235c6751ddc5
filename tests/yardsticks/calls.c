/* The calls whose instructions are counted. Rank 0 is counted, rank 1 is its peer.
 *
 * usage: kolo-yardstick-calls OPERATION CALLS        with KOLO_RANK, KOLO_SIZE (2) and KOLO_JOB set
 *
 * A counted rank runs so much slower than its peer that the peer is there first, so no instruction is spent on waiting.
 * What is moved has 8 bytes; each item of a list has 128. The gathers have 4 KiB of each rank: as one block, as a list
 * of one item, and as the columns of an array. The exchange makes shards of rows of shards of columns, of the same
 * size. */
#include <kolo/kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static koloComm_t comm;
static int rank;
static double in, out;
enum { kItems = 32, kOfItem = 16 };
static double manyIn[kItems][kOfItem], manyOut[kItems][kOfItem];
static koloItem_t items[kItems];
enum { kSide = 32, kShard = kSide * kSide };
static float shard[kShard], gathered[2 * kShard];
static const size_t kMine[] = {kSide, kSide}, kOfBoth[] = {kSide, 2 * kSide};
static const size_t kRows[] = {kSide / 2, 2 * kSide};
static const koloArray_t kShardArray = {2, kMine, NULL}, kWholeArray = {2, kOfBoth, NULL},
                         kRowsArray = {2, kRows, NULL};
static koloItem_t block, columns, exchange;

static koloResult_t allReduce(void) { return koloAllReduce(&in, &out, 1, koloFloat64, koloSum, comm, NULL); }
static koloResult_t broadcastFrom(int root) { return koloBroadcast(&in, &in, 1, koloFloat64, root, comm, NULL); }
static koloResult_t give(void) { return broadcastFrom(0); }
static koloResult_t take(void) { return broadcastFrom(1); }
static koloResult_t sendOne(void) {
  return rank == 0 ? koloSend(&in, 1, koloFloat64, 1, comm, NULL) : koloRecv(&in, 1, koloFloat64, 0, comm, NULL);
}
static koloResult_t receiveOne(void) {
  return rank == 1 ? koloSend(&in, 1, koloFloat64, 0, comm, NULL) : koloRecv(&in, 1, koloFloat64, 1, comm, NULL);
}

static koloResult_t reduceItems(size_t count) { return koloAllReduceList(items, count, koloSum, comm, NULL); }
static koloResult_t listOf1(void) { return reduceItems(1); }
static koloResult_t listOf32(void) { return reduceItems(kItems); }

static koloResult_t gatherBlock(void) { return koloAllGather(shard, gathered, kShard, koloFloat32, comm, NULL); }
static koloResult_t gatherList(void) { return koloAllGatherList(&block, 1, comm, NULL); }
static koloResult_t gatherColumns(void) { return koloAllGatherList(&columns, 1, comm, NULL); }
static koloResult_t exchangeAxes(void) { return koloAllToAllAxis(&exchange, 0, 1, NULL, NULL, comm, NULL); }

static void makeItems(void) {
  block.sendbuf = shard;
  block.recvbuf = gathered;
  block.count = kShard;
  block.sendtype = block.transfertype = block.recvtype = koloFloat32;
  columns = block;
  columns.count = 0;
  columns.sendarray = &kShardArray;
  columns.recvarray = &kWholeArray;
  columns.axis = 1;
  exchange = columns;
  exchange.axis = 0;
  exchange.recvarray = &kRowsArray;
  for (int i = 0; i < kItems; ++i) {
    items[i].sendbuf = manyIn[i];
    items[i].recvbuf = manyOut[i];
    items[i].count = kOfItem;
    items[i].sendtype = items[i].transfertype = items[i].recvtype = koloFloat64;
  }
}

static const struct {
  const char* name;
  koloResult_t (*call)(void);
} operations[] = {{"all_reduce", allReduce},      {"broadcast_root", give},
                  {"broadcast_leaf", take},       {"send", sendOne},
                  {"receive", receiveOne},        {"list_of_1", listOf1},
                  {"list_of_32", listOf32},       {"gather_block", gatherBlock},
                  {"gather_list", gatherList},    {"gather_columns", gatherColumns},
                  {"exchange_axes", exchangeAxes}};

static int fail(const char* what) {
  fprintf(stderr, "kolo-yardstick-calls: rank %d: %s: %s\n", rank, what, koloGetLastError(NULL));
  return 2;
}

/* What is counted: a call of the library's, and returning from it. */
__attribute__((noinline)) static int counted(koloResult_t (*call)(void)) { return call() == koloSuccess; }

int main(int argc, char** argv) {
  koloResult_t (*call)(void) = NULL;
  for (size_t i = 0; argc == 3 && i < sizeof operations / sizeof *operations; ++i) {
    if (strcmp(argv[1], operations[i].name) == 0) call = operations[i].call;
  }
  if (call == NULL) {
    fprintf(stderr, "usage: kolo-yardstick-calls OPERATION CALLS\n");
    return 2;
  }
  if (koloCommInitFromEnv(&comm, NULL) != koloSuccess) return fail("koloCommInitFromEnv");
  if (koloCommUserRank(comm, &rank) != koloSuccess) return fail("koloCommUserRank");
  makeItems();
  for (long i = 0, calls = atol(argv[2]); i < calls; ++i) {
    if (!counted(call)) return fail(argv[1]);
  }
  return koloCommDestroy(comm) == koloSuccess ? 0 : fail("koloCommDestroy");
}
