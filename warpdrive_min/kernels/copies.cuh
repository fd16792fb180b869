// Asynchronous copies to shared memory, in groups.
#pragma once

#if defined(__CUDACC__)

WD_FN void wd_copy4(float* const to, const void* const from) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
WD_FN void wd_copy16(float* const to, const void* const from) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
WD_FN void wd_end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
WD_FN void wd_await_all_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
WD_FN void wd_await_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

#endif
