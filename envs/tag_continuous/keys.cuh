// Sorting networks for a GPU's search of neighbours. A key is a squared distance whose lowest bits are replaced by the
// agent's place among the candidates. Networks sort keys without branches, by two instructions per pair.
#pragma once

#if defined(__CUDACC__)

typedef unsigned Key;

WD_FN void sort(Key& a, Key& b) {
  const Key low = a < b ? a : b;
  b = a < b ? b : a;
  a = low;
}

// Merges two sorted halves of N keys, each STEP apart: Batcher's odd-even merge.
template <int N, int STEP>
WD_FN void merge_halves(Key* keys) {
  if constexpr (2 * STEP < N) {
    merge_halves<N, 2 * STEP>(keys);
    merge_halves<N, 2 * STEP>(keys + STEP);
#pragma unroll
    for (int i = STEP; i + STEP < N; i += 2 * STEP) sort(keys[i], keys[i + STEP]);
  } else {
    sort(keys[0], keys[STEP]);
  }
}

template <int N>
WD_FN void sort_keys(Key* keys) {
  if constexpr (N > 1) {
    sort_keys<N / 2>(keys);
    sort_keys<N / 2>(keys + N / 2);
    merge_halves<N, 1>(keys);
  }
}

#endif
