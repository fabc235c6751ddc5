/* A plugin that must be refused. Its fault is chosen when it is compiled: FAULT_ABI, FAULT_SIZE, FAULT_ENTRY; without
 * one of them its table lacks deviceOpen. */
#include <kolo/transport.h>

static int probe(char* why, size_t whyBytes) {
  if (whyBytes > 0) why[0] = '\0';
  return KOLO_TRANSPORT_OK;
}

#ifdef FAULT_ABI
#define ABI (KOLO_TRANSPORT_ABI + 1)
#else
#define ABI KOLO_TRANSPORT_ABI
#endif
#ifdef FAULT_SIZE
#define SIZE 16
#else
#define SIZE sizeof(koloTransport)
#endif

static const koloTransport table = {
    .abi = ABI, .size = SIZE, .name = "broken", .linkKind = koloLinkMapped, .probe = probe};

#ifdef FAULT_ENTRY
#define ENTRY koloTransportWrongName
#else
#define ENTRY koloTransportEntry
#endif
__attribute__((visibility("default"))) const koloTransport* ENTRY(void);
__attribute__((visibility("default"))) const koloTransport* ENTRY(void) { return &table; }
