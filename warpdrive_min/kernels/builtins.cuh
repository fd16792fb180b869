// nvcc's built-in names, for the C++ compiler of the backend `host`; `nvcc.cuh` includes it before a source with a thread
// for each agent.
#pragma once

#include <limits>
#include <type_traits>

#define __global__
#define WD_EXPORTED __attribute__((visibility("protected")))
#define __constant__ WD_EXPORTED  // the backend copies data to it, by name

#include "fibres.cuh"
//
#include "words.cuh"  // with atomics that switch between fibres

// ---- symbols

#include <dlfcn.h>
#if __has_include(<link.h>)
#include <link.h>
#endif

// Bytes of an exported variable; 0 where the system does not say.
extern "C" WD_EXPORTED size_t wd_size_of(void* symbol) {
#if defined(__GLIBC__)
  Dl_info library;
  ElfW(Sym)* entry = nullptr;
  if (dladdr1(symbol, &library, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) && entry) return entry->st_size;
#endif
  return 0;
}
