// Included before everything else.
#include <kolo/kolo.h>

#undef KOLO_PATCH
#define KOLO_PATCH 99
