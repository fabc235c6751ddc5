#include <kolo/kolo.h>
#include <stdio.h>

#define CHECK(call) \
  if ((call) != koloSuccess) return fprintf(stderr, "%s: %s\n", #call, koloGetLastError(NULL)), 1

int main(void) {
  koloComm_t comms[2];
  float in[2][3] = {{1, 2, 3}, {10, 20, 30}}, out[2][3];
  int rank;

  CHECK(koloCommInitAll(comms, 2, NULL)); /* two ranks, both in this thread */
  CHECK(koloGroupStart());
  for (rank = 0; rank < 2; ++rank)
    CHECK(koloAllReduce(in[rank], out[rank], 3, koloFloat32, koloSum, comms[rank], NULL));
  CHECK(koloGroupEnd()); /* both ranks' results are ready */

  for (rank = 0; rank < 2; ++rank) {
    if (out[rank][0] != 11 || out[rank][1] != 22 || out[rank][2] != 33) return 1;
    CHECK(koloCommDestroy(comms[rank]));
  }
  return puts("ok") < 0;
}
