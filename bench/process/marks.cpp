// Callgrind's client requests, for ctypes.
#include <valgrind/callgrind.h>
extern "C" void wd_count_start() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void wd_count_stop() { CALLGRIND_STOP_INSTRUMENTATION; }
extern "C" void wd_count_begin() { CALLGRIND_ZERO_STATS; }
extern "C" void wd_count_end(const char* label) { CALLGRIND_DUMP_STATS_AT(label); }
