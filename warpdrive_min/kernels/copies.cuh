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

// Starts copies of a row by BESIDE lanes, STEP floats at a time, from a lane's `first` feature on; `to` and `from` are at
// feature `begin`.
template <int N, int BESIDE, int STEP>
WD_FN void copy_row(float* const to, const float* const from, const int begin, const int first) {
#pragma unroll
  for (int k = 0; k < N; k += BESIDE * STEP)
    if (k + first < N) {
      const int at = k + first - begin;
      if (STEP == 4)
        wd_copy16(to + at, from + at);
      else
        wd_copy4(to + at, from + at);
    }
}
